"""What a catalogue says of an ad beside its features: status, bid, objective, advertiser. Each may be absent."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.errors import LogError
from contracts.records import OPTIONAL_COLUMNS, STATUSES, check_columns, plain_text

ATTRIBUTES = OPTIONAL_COLUMNS["ads"]
BID_RULE = "expected a finite number of at least 0, or null"
_LARGEST_BID = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class AdAttributes:
    """Attributes of B ads.

    Args:
        status: Position in ``contracts.records.STATUSES``, int8 [B]; a missing status is active.
        bids: float32 [B]; NaN where there is none.
        objectives: Position among the schema's objective names, int8 [B]; -1 where there is none.
        advertisers: Text [B], null where there is none.
    """

    status: np.ndarray
    bids: np.ndarray
    objectives: np.ndarray
    advertisers: pa.StringArray


def ad_attributes(table: pa.Table, objective_names: Sequence[str], *, source: str) -> AdAttributes:
    """Read the attributes of a batch of ads.

    Raises:
        LogError: A column has a wrong type, or a status or objective is unknown.
    """
    present = {name: kind for name, kind in ATTRIBUTES.items() if name in table.column_names}
    check_columns(table.schema, present, source=source)
    nothing = pa.nulls(len(table), pa.string())
    columns = {name: table[name].combine_chunks() if name in present else nothing for name in ATTRIBUTES}
    return AdAttributes(
        status=_codes(columns["status"], STATUSES, missing=0, column="status", source=source),
        bids=_numbers(columns["bid"]).astype(np.float32),
        objectives=_codes(columns["objective"], objective_names, missing=-1, column="objective", source=source),
        advertisers=plain_text(columns["advertiser_id"]),
    )


def invalid_bids(table: pa.Table, *, source: str) -> np.ndarray:
    """Which ads of a batch hold a bid that is no finite fp32 number of at least 0, bool [B]; null is no fault.

    Raises:
        LogError: The column has a wrong type.

    Example:
        >>> invalid_bids(pa.table({"bid": [0.5, None, float("nan"), -1.0]}), source="ads").tolist()
        [False, False, True, True]
    """
    if "bid" not in table.column_names:
        return np.zeros(len(table), bool)
    check_columns(table.schema, {"bid": ATTRIBUTES["bid"]}, source=source)
    column = table["bid"].combine_chunks()
    bids = _numbers(column)
    return np.asarray(column.is_valid()) & ~((bids >= 0) & (bids <= _LARGEST_BID))


def _numbers(array: pa.Array) -> np.ndarray:
    """float64 [B]; NaN where there is none."""
    if pa.types.is_null(array.type) or pa.types.is_string(array.type):  # of no values: the column is absent
        return np.full(len(array), np.nan)
    return np.asarray(array.to_numpy(zero_copy_only=False), np.float64)


def _codes(array: pa.Array, names: Sequence[str], *, missing: int, column: str, source: str) -> np.ndarray:
    texts = plain_text(array)
    codes = pc.index_in(texts, pa.array(names, pa.string()))
    unknown = pc.and_(codes.is_null(), texts.is_valid())
    if pc.any(unknown).as_py():
        value = texts.filter(unknown)[0].as_py()
        raise LogError(f"{source}: column {column} has the value {value!r}, expected one of {list(names)}")
    return np.asarray(codes.fill_null(missing)).astype(np.int8)
