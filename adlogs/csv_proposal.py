"""A proposed mapping of CSV files as data, and as the YAML file that people read: each line with its reason."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from adlogs.csv_column import Column
from adlogs.csv_folder import SAMPLE_ROWS
from adlogs.yaml_text import commented, flow, quoted

ELIGIBLE_PER_REQUEST = 10
WHOLE_POOLS = 200


@dataclass
class Line:
    """One column of the proposal.

    Args:
        source: Its name in the file.
        column: What it becomes.
        comment: Why.
        check: Whether a person should look.
        left_out: Whether the line is commented out.
    """

    source: str
    column: Column
    comment: str = ""
    check: bool = False
    left_out: bool = False


@dataclass
class Section:
    """One table of the proposal."""

    path: str
    files: str
    separator: str
    lines: list[Line]
    key: str | None = None
    note: str = ""


@dataclass
class Proposal:
    """What is written into the mapping file.

    Args:
        sections: Tables, look-up tables among them.
        null_values: Words that stand in the files.
        has_naive_times: Whether times name no zone.
        unused: Files that nothing leads to.
        taken: Names in the log that are given, by side of the request.
        all_shown: Whether each row seems to be an ad that was shown.
    """

    sections: list[Section] = field(default_factory=list)
    null_values: list[str] = field(default_factory=list)
    has_naive_times: bool = False
    unused: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    all_shown: bool = False


def line_row(section: Section, line: Line) -> dict[str, Any]:
    return {
        "table": section.path,
        "file": section.files,
        "column": line.source,
        "name": None if line.left_out else line.column.name,
        "type": ("list of " if line.column.list is not None else "") + line.column.kind,
        "why": line.comment,
        "check": line.check,
    }


def proposal_text(proposal: Proposal, directory: Path, out: Path, notes: dict[str, str]) -> str:
    """The YAML file, each line with its reason."""
    zone = "  # check: times name no zone" if proposal.has_naive_times else "  # of times that name no zone"
    lines = [
        commented(
            f"Proposed by `adsieve convert csv {directory} --propose {out}`, from at most {SAMPLE_ROWS:,} rows a file."
        ),
        "# Each line: column of the CSV file: what it becomes in the log. Mend what a comment asks to check, then run",
        commented(f"`adsieve convert csv {directory} --mapping {out} --out logs`. What is commented out is left out."),
        "version: 1",
        f"null_values: {flow(proposal.null_values)}  # texts that mean no value",
        f"time_zone: UTC{zone}",
        "scenario: standard  # of requests and ads without a column of this name: what a release serves",
    ]
    if proposal.all_shown:
        lines += [
            f"eligible_per_request: {ELIGIBLE_PER_REQUEST}"
            "  # check: the rows are what was shown; so many other ads of the day join each request as not shown",
            f"whole_pools: {WHOLE_POOLS}"
            "  # so many of the latest requests get all ads of their day, up to 1,000: recall is measured on them",
        ]
    lines += [f"# {file}: no column leads to it, so it is not used" for file in proposal.unused]
    lines += [f"# check: {note}" for name, note in notes.items() if name not in ("ad", "user")]
    in_lookups = False
    for section in proposal.sections:
        if section.path.startswith("lookups.") and not in_lookups:
            lines.append("lookups:")
            in_lookups = True
        lines += _section_lines(section)
    return "\n".join(lines) + "\n"


def _section_lines(section: Section) -> Iterator[str]:
    indent = "  " if section.path.startswith("lookups.") else ""
    yield f"{indent}{section.path.removeprefix('lookups.')}:  # {section.note}"
    yield f"{indent}  files: {quoted(section.files)}"
    if section.key is not None:
        yield f"{indent}  key: {section.key}"
    if section.separator != ",":
        yield f"{indent}  separator: {quoted(section.separator)}"
    yield f"{indent}  columns:"
    for line in section.lines:
        text = f"{quoted(line.source)}: {flow(msgspec.to_builtins(line.column))}"
        comment = ("check: " if line.check else "") + line.comment
        yield f"{indent}    {'# ' if line.left_out else ''}{text}" + (f"  {commented(comment)}" if comment else "")
