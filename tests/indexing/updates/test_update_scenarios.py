"""Parquet of several scenarios: rows of those that have a release are taken, the others counted and told."""

import json
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


def update(store: Path, *tables: pa.Table, options: tuple[str, ...] = ()) -> Result:
    paths = [store.parent / f"part-{number}.parquet" for number in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    return CliRunner().invoke(app, ["update", *map(str, paths), "--store", str(store), *options])


def test_rows_of_scenarios_without_a_release_are_passed_over_and_counted(store: Path, ads_table: Any) -> None:
    table = ads_table(10)  # every fifth is of standard
    found = update(store, table, table.slice(4, 1))
    assert found.exit_code == 0, found.output
    told = 'warning: 3 rows of scenarios without a release are passed over: "standard" (3)'
    assert told in found.stderr
    assert ": 8 updates, 8 of them with content of an ad; position " in found.stdout
    appended = [one.ad_id for one in open_store(store).update_log().read()]
    expected = [row["ad_id"] for row in table.to_pylist() if row["scenario"] == "shopping"]
    assert appended == expected
    again = json.loads(update(store, table, options=("--json",)).stdout)
    assert (again["updates"], again["contents"], again["passed_over"]) == (8, 8, {"standard": 2})


def test_where_all_rows_are_passed_over_nothing_is_done(store: Path, ads_table: Any) -> None:
    table = ads_table(5).slice(4, 1)
    refused = update(store, table).exception
    assert isinstance(refused, InputError)
    assert str(refused).startswith("nothing to update: 1 rows of scenarios without a release are passed over")
    assert "shopping" in str(refused)
    assert open_store(store).update_log().end is None
    assert update(store, table, options=("--takedown", "ad-1")).exit_code == 0
