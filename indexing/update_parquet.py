"""Updates from Parquet: the rows of an ads dataset, each a new or changed ad with its status and bid."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from msgspec import UNSET

from contracts.errors import InputError
from contracts.parquet import sound_batches
from contracts.records import OPTIONAL_COLUMNS, REQUIRED_COLUMNS, check_columns, open_dataset, plain_text, utc_micros
from indexing import update_input as checks
from indexing.update_record import Content, Update

_ATTRIBUTES = {**REQUIRED_COLUMNS["ads"], **OPTIONAL_COLUMNS["ads"]}
_BATCH = 65_536


def read_parquet(path: Path, left_out: dict[str, str]) -> Iterator[tuple[str, Update]]:
    """Read the rows of a file, in order, each with where it stands. A row's time is its ``valid_from``.

    A column of a type that JSON cannot hold (a time, bytes) is no feature and is left out.

    Args:
        left_out: Takes in what such columns are, by name.

    Raises:
        LogError: It is no Parquet, or a column is missing or has a wrong type.
        InputError: A value is wrong; names the row and the column.
    """
    dataset = open_dataset(path)
    present = {name: kind for name, kind in _ATTRIBUTES.items() if name in dataset.schema.names}
    check_columns(dataset.schema, {**REQUIRED_COLUMNS["ads"], **present}, source=path)
    features = [name for name in dataset.schema.names if _is_plain(dataset.schema.field(name).type)]
    features = [name for name in features if name not in _ATTRIBUTES]
    for other in dataset.schema:
        if other.name not in _ATTRIBUTES and other.name not in features:
            left_out[other.name] = f"{path}: column {other.name!r} has type {other.type}"
    first = 0
    batches = dataset.to_batches(columns=[*present, *features], batch_size=_BATCH)
    for batch in sound_batches(batches, source=path):
        table = pa.Table.from_batches([batch])
        times = utc_micros(table["valid_from"], column="valid_from", source=path).tolist()
        columns = {
            name: plain_text(table[name])
            if name in present and name not in ("bid", "valid_from")
            else _json(table[name])
            for name in [*present, *features]
        }
        values = {name: column.to_pylist() for name, column in columns.items() if name != "valid_from"}
        for row, valid_from in enumerate(times):
            cells = {name: column[row] for name, column in values.items()}
            yield _update(cells, valid_from, features, f"{path}: row {first + row}")
        first += len(batch)


def _update(cells: dict[str, Any], valid_from: int, features: list[str], where: str) -> tuple[str, Update]:
    try:
        checks.check_moment(valid_from, "valid_from")
        bid = cells.get("bid", UNSET)
        return where, Update(
            ad_id=checks.identifier(cells["ad_id"], "ad_id"),
            at=valid_from,
            status=None if cells.get("status") is None else checks.status(cells["status"], "status"),
            bid=bid if bid is None or bid is UNSET else checks.bid(bid, "bid"),
            content=Content(
                scenario=checks.text(cells["scenario"], "scenario"),
                valid_from=valid_from,
                advertiser_id=cells.get("advertiser_id"),
                objective=cells.get("objective"),
                features={name: _finite(cells[name], name) for name in features},
            ),
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _finite(value: Any, name: str) -> Any:
    """JSON has no NaN: it would come back as a missing value."""
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float) and not math.isfinite(number):
            raise InputError(f"{name}: expected finite numbers or null, got {number}")
    return value


def _json(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A decimal, which the encoders read as a number, as one."""
    return column.cast(pa.float64()) if pt.is_decimal(column.type) else column


def _is_plain(type_: pa.DataType) -> bool:
    if pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_) or pt.is_dictionary(type_):
        return _is_plain(type_.value_type)
    is_text = pt.is_string(type_) or pt.is_large_string(type_)
    is_number = pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_)
    return is_text or is_number or pt.is_boolean(type_) or pt.is_null(type_)
