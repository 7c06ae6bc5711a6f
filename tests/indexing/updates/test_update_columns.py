"""Columns of Parquet by their types: what a feature can be read from comes as in a build, and another type is told."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from contracts.errors import InputError
from indexing.cli import app
from indexing.stores import open_store


@pytest.fixture
def store(built: Any, tmp_path: Path) -> Path:
    """A store with one release of ``shopping``."""
    root = tmp_path / "store"
    open_store(root).publish(two_tower=built.two_tower.path, heavy=built.heavy.path, index=built.path)
    return root


def update(store: Path, table: pa.Table) -> Result:
    path = store.parent / "ads.parquet"
    pq.write_table(table, path)
    return CliRunner().invoke(app, ["update", str(path), "--store", str(store)])


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("price", pa.array([1] * 4, pa.timestamp("us", "UTC"))),
        ("category", pa.array([b"shoes"] * 4)),
        ("image", pa.array([{"x": 1}] * 4)),
    ],
)
def test_a_column_that_no_feature_can_be_read_from_is_told_with_its_type(
    store: Path, ads_table: Any, column: str, values: pa.Array
) -> None:
    refused = update(store, ads_table(4, **{column: values})).exception
    assert isinstance(refused, InputError)
    expected = f"ads.parquet: column {column!r} has type {values.type}, which the models of this scenario cannot read"
    assert str(refused).endswith(expected)
    assert open_store(store).update_log().end is None


def test_such_a_column_that_no_model_reads_is_left_out(store: Path, ads_table: Any) -> None:
    table = ads_table(4).append_column("seen", pa.array([1] * 4, pa.timestamp("us", "UTC")))
    assert update(store, table).exit_code == 0
    features = [one.content.features.keys() for one in open_store(store).update_log().read() if one.content]
    assert all(set(names) == {"category", "price", "image"} for names in features)


def test_decimals_are_numbers(store: Path, ads_table: Any) -> None:
    prices = pa.array([Decimal("1.25"), None, Decimal("3.50"), Decimal("0.00")], pa.decimal128(9, 2))
    assert update(store, ads_table(4, price=prices)).exit_code == 0
    contents = [one.content for one in open_store(store).update_log().read()]
    assert [content.features["price"] for content in contents if content] == [1.25, None, 3.5, 0.0]
