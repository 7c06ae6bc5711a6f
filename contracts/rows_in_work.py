"""What the encoders of single features share: a slice of rows, where its values are read from and where results go."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa


@dataclass
class RowsInWork:
    """A slice of rows being encoded: where values are read from, and where ids, floats and findings go.

    Args:
        arrays: Column name to its array of B rows; absent columns are not in it.
        ids: int32 [B, num_ids], zeros at first.
        floats: float32 [B, num_floats], zeros at first.
        event_time: int64 [B] microseconds UTC of the requests, or None.
        missing: Rows without a value, by column.
        out_of_vocabulary: Rows with a value that a vocabulary lacks, by column.
        faults: What is wrong: column, rule, bool [B].
        reading: The column being read, for the message when its type is wrong.
    """

    arrays: Mapping[str, pa.Array]
    ids: np.ndarray
    floats: np.ndarray
    event_time: np.ndarray | None
    missing: dict[str, int] = field(default_factory=dict)
    out_of_vocabulary: dict[str, int] = field(default_factory=dict)
    faults: list[tuple[str, str, np.ndarray]] = field(default_factory=list)
    reading: str = ""

    def read(self, column: str) -> pa.Array | None:
        """The column's array, or None where it is absent."""
        self.reading = column
        return self.arrays.get(column)

    def fault(self, column: str, rule: str, rows: np.ndarray) -> None:
        """Note the rows that break a rule, if there are any."""
        if rows.any():
            self.faults.append((column, rule, rows))


def rows_with(ids: np.ndarray, wanted: int) -> int:
    return int(np.count_nonzero((ids == wanted).any(axis=1)))
