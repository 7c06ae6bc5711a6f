"""Arrow columns from arrays, in the types that converted logs use."""

import numpy as np
import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")


def floats(values: np.ndarray) -> pa.Array:
    """float32, null where NaN.

    Example:
        >>> floats(np.array([0.5, np.nan])).to_pylist()
        [0.5, None]
    """
    return pa.array(values.astype(np.float32), pa.float32(), mask=np.isnan(values))


def small_ints(values: np.ndarray) -> pa.Array:
    """int8."""
    return pa.array(values.astype(np.int8), pa.int8())


def constant(text: str, rows: int) -> pa.Array:
    """One text in every row, stored once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def lists(values: pa.Array, lengths: np.ndarray) -> pa.Array:
    """Consecutive values as lists.

    Example:
        >>> lists(pa.array([1, 2, 3]), np.array([2, 0, 1])).to_pylist()
        [[1, 2], [], [3]]
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)
