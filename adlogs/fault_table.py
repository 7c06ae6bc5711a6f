"""A validation report for people: what was read, and a table of faults for each file."""

from itertools import groupby

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from adlogs.faults import LogFault, ValidationReport

MAX_SHOWN = 200
"""Faults in the table; the JSON report holds all of them."""


def report_table(report: ValidationReport) -> RenderableType:
    """What `adsieve validate` prints."""
    parts: list[RenderableType] = [_counts(report)]
    for file, faults in groupby(report.faults[:MAX_SHOWN], key=lambda fault: fault.file):
        parts.append(_file_faults(file, list(faults)))
    hidden = len(report.faults) - MAX_SHOWN
    if hidden > 0:
        parts.append(Text(f"and {hidden:,} more faults; --json lists them all"))
    if not report.faults:
        parts.append(Text("No faults."))
    return Group(*parts)


def _counts(report: ValidationReport) -> Table:
    table = Table(box=box.SIMPLE)
    for heading in ("dataset", "files", "row groups", "rows", "faults"):
        table.add_column(heading, justify="left" if heading == "dataset" else "right")
    for name, count in report.counts.items():
        faults = sum(fault.dataset == name for fault in report.faults)
        table.add_row(name, *(f"{number:,}" for number in (count.files, count.row_groups, count.rows, faults)))
    return table


def _file_faults(file: str, faults: list[LogFault]) -> Table:
    """Values are wrapped in Text: what stands in a log is no markup."""
    table = Table(title=Text(file), title_justify="left", box=box.SIMPLE)
    for heading in ("row group", "first row", "rows"):
        table.add_column(heading, justify="right")
    for heading in ("column", "rule", "example"):
        table.add_column(heading, overflow="fold")
    for fault in faults:
        group, row = ("" if number is None else f"{number:,}" for number in (fault.row_group, fault.row))
        count = "all" if fault.row is None else f"{fault.count:,}"
        table.add_row(group, row, count, Text(fault.column or ""), Text(fault.rule), Text(fault.example))
    return table
