"""Plain columns of a log as arrays: numbers with NaN where missing, and texts as codes.

Shapes: B rows of a slice.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from contracts.errors import LogError
from contracts.records import plain_text
from contracts.schema import FeatureSchema


def numbers(table: pa.Table, column: str, *, source: str) -> np.ndarray:
    """float32 [B], NaN where null or where there is no such column.

    Raises:
        LogError: The column holds no numbers or booleans, or one that is infinite.
    """
    if column not in table.schema.names:
        return np.full(len(table), np.nan, np.float32)
    values, type_ = table[column], table[column].type
    if pt.is_boolean(type_):
        values = values.cast(pa.int8())
    elif not (pt.is_integer(type_) or pt.is_floating(type_) or pt.is_null(type_)):
        raise LogError(f"{source}: column {column} has type {type_}, expected numbers")
    found = np.asarray(values.cast(pa.float32(), safe=False).fill_null(np.nan))
    if np.isinf(found).any():
        raise LogError(f"{source}: column {column} holds an infinite value, expected finite numbers or null")
    return found


def codes(table: pa.Table, column: str, names: Sequence[str], *, source: str) -> np.ndarray:
    """int8 [B], the position of each text in ``names``; -1 where null or where there is no such column.

    Raises:
        LogError: A text is none of ``names``.
    """
    if column not in table.schema.names:
        return np.full(len(table), -1, np.int8)
    texts = plain_text(table[column]).combine_chunks().dictionary_encode()
    unknown = sorted(set(texts.dictionary.to_pylist()) - set(names))
    if unknown:
        raise LogError(f"{source}: column {column} holds {unknown[0]!r}, expected one of {', '.join(names)}")
    own = pc.index_in(texts.dictionary, pa.array(names, pa.string())).fill_null(-1)
    return np.append(np.asarray(own), -1).astype(np.int8)[np.asarray(texts.indices.fill_null(-1))]


def objective_codes(table: pa.Table, schema: FeatureSchema, *, source: str) -> np.ndarray:
    """int8 [B], positions in ``schema.objective_names``; -1 where the row names none."""
    return codes(table, "objective", schema.objective_names, source=source)
