"""One rule for ids: any text is one, the empty text too, wherever an ad is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import UNSET
from typer.testing import CliRunner

from indexing.cli import app
from indexing.export import export_index
from indexing.stores import open_store
from indexing.update_record import Update

NEW = {"scenario": "shopping", "valid_from": "2040-01-01T00:00:00Z", "advertiser_id": ""}
FEATURES = {"category": "shoes", "price": 3.5, "image": [0.5, 0.25]}


@pytest.fixture(scope="module")
def nameless(
    build: Callable[[Path, pa.Table], Any], ads_table: Callable[..., pa.Table], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """An index of 16 ads of a catalogue of 20, one of which has the empty id."""
    table = ads_table(20)
    ids = table["ad_id"].to_pylist()
    place = next(at for at, name in enumerate(table["scenario"].to_pylist()) if name == "shopping")
    ids[place] = ""
    table = table.set_column(table.schema.get_field_index("ad_id"), "ad_id", pa.array(ids))
    table = table.set_column(
        table.schema.get_field_index("status"), "status", pa.array(["active"] * len(ids), pa.string())
    )
    return build(tmp_path_factory.mktemp("nameless"), table)


@pytest.fixture
def store(nameless: Any, tmp_path: Path) -> Path:
    open_store(tmp_path / "store").publish(
        two_tower=nameless.two_tower.path, heavy=nameless.heavy.path, index=nameless.path
    )
    return tmp_path / "store"


def update(store: Path, *arguments: str, given: bytes = b"") -> list[Any]:
    log = open_store(store).update_log()
    before = log.end
    result = CliRunner().invoke(app, ["update", *arguments, "--store", str(store)], input=given)
    assert result.exit_code == 0, result.output
    assert "in no serving release" not in result.output
    return list(log.read(before))


def test_the_empty_id_is_built_looked_up_and_exported(nameless: Any, tmp_path: Path) -> None:
    row = nameless.index.id_table.lookup([""])
    assert row[0] >= 0
    assert nameless.index.id_table.ids(row) == [""]
    export_index(nameless.index, tmp_path / "export")
    assert "" in pq.read_table(tmp_path / "export")["ad_id"].to_pylist()


def test_the_empty_id_is_updated_by_options_lines_and_files(store: Path, ads_table: Any, tmp_path: Path) -> None:
    down, active, bid, spent = update(store, "--takedown", "", "--status", "=active", "--bid", "=1.5", "--budget", "=0")
    assert [one.ad_id for one in (down, active, bid, spent)] == [""] * 4
    assert (down.takedown, active.status, bid.bid, spent.budget) == (True, "active", 1.5, 0.0)
    line = json.dumps({"ad_id": "", "content": NEW | {"features": FEATURES}}).encode()
    (one,) = update(store, "-", given=line)
    assert (one.ad_id, one.content.advertiser_id, one.takedown, one.budget) == ("", "", None, UNSET)
    pq.write_table(ads_table(1, ad_id=[""]), tmp_path / "ads.parquet")
    (one,) = update(store, str(tmp_path / "ads.parquet"))
    assert one.ad_id == ""


def test_the_empty_id_is_taken_down_changed_and_restored(
    new_day: Any, nameless: Any, content: Any, tmp_path: Path
) -> None:
    day = new_day(tmp_path, of=nameless)
    live = day.after(Update(ad_id="", at=0, takedown=True))
    assert live.servable(live.lookup([""])).tolist() == [False]
    assert live.servable(live.lookup(list(nameless.catalogue))).sum() == len(nameless.catalogue) - 1
    day.after(Update(ad_id="", at=0, takedown=False, bid=4.0, content=content()))
    rows = live.lookup([""])
    assert rows[0] >= len(day.index)
    assert live.ids(rows) == [""]
    assert (live.servable(rows).tolist(), live.bids(rows).tolist()) == ([True], [4.0])
    day.restart()
    day.apply()
    assert day.open().ids(np.array(rows)) == [""]
    day.close()
