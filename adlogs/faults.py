"""What validation finds: one fault a rule, column and row group, with its count and a first example, never one a row.

Letters: B rows of a slice.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from contracts.config_errors import show
from contracts.errors import LogError


@dataclass(frozen=True, kw_only=True)
class LogFault:
    """A rule that a column of one row group breaks.

    Args:
        dataset: ``requests``, ``candidates``, ``ads``, ``outcomes`` or ``truth``.
        file: Path of the Parquet file.
        row_group: Its number in the file, from 0; None where the whole file is at fault.
        row: The first such row, counted from 0 within its row group; None as above.
        column: None where no column can be named.
        rule: What is wrong and what was expected.
        count: Rows of the row group that break the rule; 1 for a whole file.
        example: What stands in the first such row.
    """

    dataset: str
    file: str
    row_group: int | None
    row: int | None
    column: str | None
    rule: str
    count: int
    example: str


@dataclass(frozen=True)
class DatasetCount:
    """How much of a dataset was read."""

    files: int
    row_groups: int
    rows: int


@dataclass(frozen=True)
class ValidationReport:
    """The outcome of ``validate_log``.

    Args:
        faults: In the order of datasets, files and row groups as they were met.
        counts: By dataset.
    """

    faults: tuple[LogFault, ...]
    counts: dict[str, DatasetCount]

    def require_valid(self, next_step: str | None = None) -> None:
        """Raise LogError with the number of faults and the first of them, if there are any.

        Args:
            next_step: What to do about it; by default to ask for every fault.
        """
        if self.faults:
            first = self.faults[0]
            where = first.file if first.row_group is None else f"{first.file}, row group {first.row_group}"
            column = "" if first.column is None else f" column {first.column!r}"
            number = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults, the first:"
            raise LogError(
                f"the log has {number} {where}:{column} {first.rule}, got {first.example}", next_step=next_step
            )


@dataclass(frozen=True)
class Place:
    """Where a slice of rows comes from; ``start`` is its first row within the row group."""

    dataset: str
    file: str
    row_group: int
    start: int


class FaultLog:
    """Collects faults; rows of the same row group, column and rule become one."""

    def __init__(self) -> None:
        self._faults: dict[tuple[object, ...], LogFault] = {}

    @property
    def faults(self) -> tuple[LogFault, ...]:
        return tuple(self._faults.values())

    def note_file(
        self, dataset: str, file: str, column: str | None, rule: str, example: object, *, row_group: int | None = None
    ) -> None:
        """Note what is wrong with a whole file, or with all of a row group."""
        key = (dataset, file, row_group, column, rule)
        self._faults[key] = LogFault(
            dataset=dataset,
            file=file,
            row_group=row_group,
            row=None,
            column=column,
            rule=rule,
            count=1,
            example=show(example),
        )

    def note_rows(
        self, place: Place, column: str, rule: str, rows: np.ndarray, example: Callable[[int], object]
    ) -> None:
        """Note the rows (bool [B]) of a slice that break a rule, if any; ``example`` shows one of them by position."""
        count = int(np.count_nonzero(rows))
        if not count:
            return
        key = (place.dataset, place.file, place.row_group, column, rule)
        known = self._faults.get(key)
        first = int(rows.argmax())
        self._faults[key] = LogFault(
            dataset=place.dataset,
            file=place.file,
            row_group=place.row_group,
            row=known.row if known else place.start + first,
            column=column,
            rule=rule,
            count=count + (known.count if known else 0),
            example=known.example if known else show(example(first)),
        )
