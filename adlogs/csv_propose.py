"""`adsieve convert csv DIR --propose FILE`: a mapping for a folder that nobody has described, each guess explained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_column import Column
from adlogs.csv_facts import fact_lines
from adlogs.csv_folder import SAMPLE_ROWS, SampledFile, pattern_of, sample_folder
from adlogs.csv_join import Join
from adlogs.csv_lines import changed, fixed_line, free_name, key_line, plain_line, unless
from adlogs.csv_mapping import CsvMapping
from adlogs.csv_names import plain
from adlogs.csv_order import SequenceNames, sequence_names
from adlogs.csv_proposal import Line, Proposal, Section, line_row, proposal_text
from adlogs.csv_roles import Roles, find_roles
from adlogs.csv_values import TIME_KINDS
from contracts.artifact import write_bytes
from contracts.config import load_config
from contracts.errors import InputError


def propose_mapping(directory: Path, out: Path, ad: str | None = None, outcomes: Sequence[str] = ()) -> dict[str, Any]:
    """Write a mapping for the CSV files of a folder, to be read and mended.

    Args:
        directory: Folder of the CSV files.
        out: YAML file to write; none is there yet.
        ad: The column of ads, where files and names do not tell it.
        outcomes: Columns of outcomes, where names do not tell them.

    Returns:
        ``columns``: a row each, with ``table``, ``file``, ``column``, ``name`` (null where it is left out), ``type``,
        ``why`` and ``check``; ``unused``: files that nothing leads to; and ``notes``: what the whole lacks.

    Raises:
        LogError: No file has ids of ads, several columns may be the id, or a file cannot be read.
        InputError: ``out`` is there already.
    """
    if out.exists():
        raise InputError(
            f"{out}: is there already, expected the name of a new file",
            next_step="remove it, or choose another name after --propose",
        )
    files = sample_folder(directory, outcomes)
    roles = find_roles(files, ad)
    proposal = _proposal(directory, files, roles)
    write_bytes(out, proposal_text(proposal, directory, out, roles.notes).encode())
    load_config(out, CsvMapping)
    return {"columns": [line_row(section, line) for section in proposal.sections for line in section.lines]} | {
        "unused": proposal.unused,
        "notes": [note for name, note in roles.notes.items() if name not in ("ad", "user")],
    }


def _proposal(directory: Path, files: list[SampledFile], roles: Roles) -> Proposal:
    proposal = Proposal(
        null_values=sorted(set().union(*(file.null_words for file in files)) or {""}),
        has_naive_times=any(
            file.guesses[name].reading.kind == "time" and not file.guesses[name].note and _is_naive(file.texts(name))
            for file in files
            for name in file.columns
        ),
        unused=[file.name for file in roles.unused],
    )
    facts = fact_lines(roles, proposal)
    name = "impressions" if roles.requests is None else "candidates"
    sections = [_section(name, roles.facts, directory, facts)]
    if roles.requests is not None:
        lines = _side_table(roles.requests, "request_id", roles, proposal, is_requests=True)
        sections.insert(0, _section("requests", roles.requests.file, directory, lines))
    if roles.ads is not None:
        lines = _side_table(roles.ads, "ad_id", roles, Proposal())
        sections.append(_section("ads", roles.ads.file, directory, lines))
    for join in roles.lookups:
        key = _query_name(join.column, roles)
        section = _section(f"lookups.{plain(join.file.name.partition('.')[0])}", join.file, directory, [])
        section.lines = _side_table(join, key, roles, proposal)
        section.key = key
        section.note = f"{join.overlap:.0%} of the values of {join.column} have a row here"
        sections.append(section)
    proposal.sections = sections
    proposal.all_shown = roles.requests is None or _all_shown(roles, facts)
    return proposal


def _all_shown(roles: Roles, facts: list[Line]) -> bool:
    """Whether candidates that are apart from requests are only what was shown: each has an outcome."""
    told = {line.column.name for line in facts if not line.left_out} & {"stage", "shown", "position"}
    return not told and bool(roles.labels) and not any(roles.facts.values(name).null_count for name in roles.labels[:1])


def _section(path: str, file: SampledFile, directory: Path, lines: list[Line]) -> Section:
    rows = f"{file.rows.num_rows:,} rows" if file.is_whole else f"more than {SAMPLE_ROWS:,} rows"
    return Section(path, pattern_of(file.path, directory), file.separator, lines, note=rows)


def _query_name(column: str, roles: Roles) -> str:
    """What a column of the facts that joins a look-up table is named in the log."""
    return "user_id" if column == roles.user else free_name(plain(column), set())


def _side_table(join: Join, key: str, roles: Roles, proposal: Proposal, *, is_requests: bool = False) -> list[Line]:
    """Lines of a file with one row a key."""
    file, lines = join.file, []
    sequences = sequence_names(file, roles.facts.texts(roles.ad), key)
    time = next((name for name in file.columns if file.guesses[name].is_time), None)
    for name in file.columns:
        if name == join.key:
            lines.append(Line(name, Column(name=key), f"finds the row of {join.column}"))
        elif is_requests and name == roles.user:
            lines.append(key_line(file, name, "user_id", roles))
        elif is_requests and name == time:
            lines.append(key_line(file, name, "event_time", roles))
        elif key == "ad_id" and name == time and join.key not in file.keys:
            lines.append(_with_name(key_line(file, name, "event_time", roles), "valid_from"))
        elif name in sequences.by_column:
            lines.append(_sequence_line(file, name, sequences))
        else:
            fixed = fixed_line(file, name) if is_requests or key == "ad_id" else None
            lines.append(fixed or _ad_or_query_line(file, name, key, proposal))
        proposal.taken.add(lines[-1].column.name)
    return sorted(lines, key=lambda line: (line.left_out, line.column.name not in (key, "event_time", "valid_from")))


def _ad_or_query_line(file: SampledFile, name: str, key: str, proposal: Proposal) -> Line:
    word = plain(name)
    if key == "ad_id" and word == "advertiser_id":
        return Line(name, Column(name=word), "requests may exclude advertisers by it")
    if key == "ad_id" and word == "status":
        values = set(pc.unique(file.texts(name).drop_null()).to_pylist())
        if values <= {"active", "paused", "removed"}:
            return Line(name, Column(name="status"), "only active ads are served")
    return plain_line(file, name, proposal.taken)


def _sequence_line(file: SampledFile, name: str, sequences: SequenceNames) -> Line:
    found = sequences.by_column[name]
    guess = file.guesses[name]
    kind = guess.reading.kind if guess.reading.kind in TIME_KINDS else "text"
    column = Column(
        name=found.name,
        type=unless(kind, "text"),
        list=guess.reading.list_separator,
        newest_first=found.newest_first,
    )
    return Line(name, column, found.comment, found.check)


def _with_name(line: Line, name: str) -> Line:
    line.column = changed(line.column, name=name)
    return line


def _is_naive(texts: pa.Array) -> bool:
    return not (pc.all(pc.match_substring_regex(texts.drop_null(), r"([zZ]|[+-]\d{2}:?\d{2})$")).as_py() or False)
