"""``adsieve simulate``, ``convert``, ``validate`` and ``schema``: where logs come from, and whether to trust them."""

import shlex
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from adlogs.cli_csv import csv
from adlogs.cli_infer import infer
from contracts.apart import ApartCommand
from contracts.console import Json, completing, print_json, print_table, utc_time, warn
from contracts.errors import LogError

convert = typer.Typer(name="convert", help="Turn your files, or a public dataset, into a log.", no_args_is_help=True)
convert.command(cls=ApartCommand)(csv)
schema = typer.Typer(name="schema", help="Propose, fit and show feature schemas.", no_args_is_help=True)
schema.command(cls=ApartCommand)(infer)


PRESETS = ("tiny", "demo", "million", "large")
Logs = Annotated[Path, typer.Option("--logs", help="Log directory with requests/, candidates/ and ads/ in Parquet.")]
SchemaName = Annotated[
    str,
    typer.Argument(
        metavar="SCHEMA",
        autocompletion=lambda incomplete: _schemas(incomplete),
        help="Schema file, or a name that comes with adsieve: simulated_heavy, ...",
    ),
]


def simulate(
    out: Annotated[Path, typer.Argument(help="Directory to create.")],
    preset: Annotated[
        str,
        typer.Option(
            autocompletion=completing(PRESETS),
            help="World: tiny (seconds, for tests), demo, million (candidate rows), large (to judge by).",
        ),
    ] = "demo",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Another world of the same sizes; each preset has its own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate an auction log of both scenarios whose true probabilities are known.

    Writes requests/, candidates/, ads/ and, apart, truth/: the true probabilities, for judging and never for training.
    The directory appears whole, at the end.
    """
    import msgspec

    from adlogs.simulate import simulate as run

    summary = run(out, preset, seed)
    _print_record(msgspec.to_builtins(summary), as_json)
    if not as_json:
        _print_next("simulated_heavy", out, summary.half_time)


@convert.command(cls=ApartCommand)
def kuairand(
    source: Annotated[
        Path, typer.Argument(help="Folder of KuaiRand-Pure: its published CSV files, or the four Parquet files.")
    ],
    out: Annotated[Path, typer.Option(help="Directory to create.")],
    seed: Annotated[int, typer.Option(min=0, help="Of the sampled videos that were not shown.")] = 0,
    full_requests: Annotated[
        int,
        typer.Option(min=0, help="Requests of the test part that log a whole pool, so that recall can be measured."),
    ] = 0,
    full_pool: Annotated[int, typer.Option(min=1, help="Videos of such a pool: those shown most that day.")] = 1_000,
    as_json: Json = False,
) -> None:
    """Convert KuaiRand-Pure, a real log of short videos, with statistics of the past as each moment knew them.

    Writes requests/, candidates/, ads/ and split.json: where training ends and the test begins.
    """
    from adlogs.kuairand import convert_kuairand

    try:
        summary = convert_kuairand(source, out, seed=seed, full_requests=full_requests, full_pool=full_pool)
    except LogError as error:
        error.next_step = error.next_step or "copy the published files again; KuaiRand-Pure is at https://kuairand.com"
        raise
    _print_record(summary, as_json)
    if not as_json:
        _print_next("kuairand_heavy", out, summary["train_until"])


def validate(
    logs: Annotated[Path, typer.Argument(help="Log directory with requests/, candidates/ and ads/ in Parquet.")],
    schema_name: Annotated[
        str, typer.Option("--schema", help="Schema file, or a name that comes with adsieve, such as simulated_heavy.")
    ],
    as_json: Json = False,
) -> None:
    """Check a log against a feature schema: every fault with file, row group, column and rule; exit code 2 if any."""
    import msgspec

    from adlogs.fault_table import report_table
    from adlogs.fit import named_schema
    from adlogs.validate import validate_log
    from contracts.records import LogPaths

    report = validate_log(LogPaths.under(logs), named_schema(schema_name))
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        print_table(report_table(report))
    report.require_valid(
        "mend what the faults name where the log is made; of a feature that is missing on purpose, take it out of the "
        "schema"
    )


@schema.command(cls=ApartCommand)
def fit(
    schema_name: SchemaName,
    logs: Logs,
    out: Annotated[Path, typer.Option(help="File to write: the schema with vocabularies, means and edges.")],
    until: Annotated[
        datetime | None,
        typer.Option(parser=utc_time, metavar="TIME", help="Only rows from before this time; UTC without a zone."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit a schema to a log: the vocabularies, means and quantile edges that its features still lack."""
    from adlogs.fit import fit_log, named_schema
    from adlogs.log_span import judge_until
    from contracts.records import LogPaths
    from contracts.schema import save_schema

    log = LogPaths.under(logs)
    if until is not None and (warning := judge_until(log, until)):
        warn(warning)
    fitted = fit_log(named_schema(schema_name), log, until=until)
    save_schema(fitted, out)
    if as_json:
        print_json({"schema": str(out), "features": len(fitted.features), "fingerprint": fitted.fingerprint()})
        return
    print(f"{out}: {len(fitted.features)} features, fingerprint {fitted.fingerprint()[:12]}")


@schema.command()
def show(schema_name: SchemaName, as_json: Json = False) -> None:
    """Show a schema: its tasks, tables and features, and what of it is not fitted yet."""
    import msgspec

    from adlogs.fit import named_schema
    from adlogs.schema_table import schema_table

    found = named_schema(schema_name)
    if as_json:
        print_json(msgspec.to_builtins(found) | {"fingerprint": found.fingerprint()})
    else:
        print_table(schema_table(found))


def _schemas(incomplete: str) -> list[str]:
    """The schemas that come with adsieve, for a shell; a shell completes files by itself."""
    folder = Path(__file__).with_name("schemas")
    return completing(sorted(path.stem for path in folder.glob("*.yaml")))(incomplete)


def _print_next(schema_name: str, out: Path, until: str) -> None:
    """The command that usually follows: what comes before a moment is learned, the rest scored or tested on."""
    command = ("adsieve", "schema", "fit", schema_name, "--logs", str(out), "--out", "heavy.yaml", "--until", until)
    print(f"next: {shlex.join(command)}")


def _print_record(record: dict[str, Any], as_json: bool) -> None:
    """One line a field, or JSON."""
    if as_json:
        print_json(record)
        return
    width = max(len(name) for name in record)
    for name, value in record.items():
        text = f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if isinstance(value, float) else str(value)
        print(f"{name.replace('_', ' '):<{width}}  {text}")
