"""``adsieve convert csv``: a folder of CSV files becomes a log, by a mapping that adsieve proposes."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from contracts.console import Json, print_json, print_table, table, warn
from contracts.errors import InputError, LogError


def csv(
    source: Annotated[Path, typer.Argument(help="Folder of CSV files, .gz or not.")],
    out: Annotated[Path | None, typer.Option(help="Log directory to create, with --mapping.")] = None,
    mapping: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file that says what each file and column is.")
    ] = None,
    propose: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write such a mapping, guessed from the files with its reasons, and stop."),
    ] = None,
    ad: Annotated[
        str | None, typer.Option("--ad-id", metavar="COLUMN", help="With --propose: the column of ads, to guess less.")
    ] = None,
    outcomes: Annotated[
        list[str] | None,
        typer.Option(
            "--outcome",
            metavar="COLUMN",
            help="With --propose: a column that tells what became of an ad, where its name does not say so; repeat it.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert a folder of CSV files: --propose a mapping, read it, then convert by it with --mapping and --out.

    The files are one table of impressions, perhaps with tables of users and ads beside it, or requests, candidates and
    ads apart. The log is checked and appears whole, or the first fault is told with file, line, column and value.
    """
    try:
        _csv(source, out, mapping, propose, Hints(ad, tuple(outcomes or ())), as_json)
    except LogError as error:
        error.next_step = error.next_step or "mend what the line above names, and run the same command again"
        raise


@dataclass(frozen=True)
class Hints:
    """What a person says of columns before a mapping is proposed."""

    ad: str | None
    outcomes: tuple[str, ...]


def _csv(
    source: Path, out: Path | None, mapping: Path | None, propose: Path | None, hints: Hints, as_json: bool
) -> None:
    if propose is None and hints != Hints(None, ()):
        raise InputError("--ad-id and --outcome: help --propose; a mapping says by itself what each column becomes")
    if propose is not None:
        if mapping is not None or out is not None:
            raise InputError("--propose: writes a mapping and converts nothing; expected neither --mapping nor --out")
        _propose(source, propose, hints, as_json)
    elif mapping is None or out is None:
        begin = shlex.join(["adsieve", "convert", "csv", str(source), "--propose", "mapping.yaml"])
        raise InputError("convert csv: expected --mapping FILE and --out DIR", next_step=f"begin with: {begin}")
    else:
        _convert(source, mapping, out, as_json)


def _propose(source: Path, out: Path, hints: Hints, as_json: bool) -> None:
    from adlogs.csv_propose import propose_mapping

    found = propose_mapping(source, out, hints.ad, hints.outcomes)
    if as_json:
        print_json(found)
        return
    rows = table("table", "column", "becomes", "type", "why")
    for row in found["columns"]:
        name = row["name"] or "left out"
        rows.add_row(row["table"], row["column"], name, row["type"], ("check: " if row["check"] else "") + row["why"])
    print_table(rows)
    for note in found["notes"]:
        warn(note)
    for file in found["unused"]:
        warn(f"{file}: no column leads to it, so it is not used")
    checks = sum(row["check"] for row in found["columns"])
    print(f"{out}: {len(found['columns'])} columns, {checks} to check")
    command = ["adsieve", "convert", "csv", str(source), "--mapping", str(out), "--out", "logs"]
    print(f"next: read {out}, then {shlex.join(command)}")


def _convert(source: Path, mapping: Path, out: Path, as_json: bool) -> None:
    from adlogs.csv_convert import convert_csv

    found = convert_csv(source, mapping, out)
    if as_json:
        print_json(found)
        return
    print_table(_counts(found))
    for warning in found["warnings"]:
        warn(warning)
    print(f"requests from {found['first']} to {found['last']}")
    print(f"next: {shlex.join(['adsieve', 'init', 'project', '--logs', str(out)])}")


def _counts(found: dict[str, Any]) -> Any:
    rows = table("dataset", "rows")
    rows.columns[1].justify = "right"
    for name, count in found["counts"].items():
        rows.add_row(name.replace("_", " "), f"{count:,}")
    return rows
