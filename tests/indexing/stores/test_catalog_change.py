"""What an index loses against the one that serves: told in full, and refused beyond a share."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from contracts.records import STATUSES
from contracts.release import UpdatePosition
from indexing.catalog_change import CatalogChange, catalog_change
from indexing.cli import app
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.nightly import build_index
from indexing.release_gate import Candidate, Judged, ReleaseRefused, judge, publish_release
from indexing.release_limits import ReleaseLimits
from indexing.store import DirectoryStore
from indexing.update_log import UpdateLog
from indexing.update_record import Content, Update

LOOSE = ReleaseLimits(max_unknown_share=None, max_lacking_share=None, max_older_share=None)
ACTIVE = STATUSES.index("active")
Build = Callable[..., Index]


@pytest.fixture
def build(bundles: Path, tmp_path: Path) -> Build:
    """Builds an index of a table of ads."""

    def build(name: str, table: pa.Table, log: UpdateLog | None = None) -> Index:
        pq.write_table(table, tmp_path / f"{name}.parquet")
        build_index(
            ads=str(tmp_path / f"{name}.parquet"),
            two_tower=bundles / "two_tower",
            heavy=bundles / "heavy",
            out=tmp_path / name,
            config=IndexConfig(threads=1, precision="fp32"),
            updates=log,
        )
        return Index.open(tmp_path / name)

    return build


def at_times(table: pa.Table, times: np.ndarray) -> pa.Table:
    place = table.schema.get_field_index("valid_from")
    return table.set_column(place, "valid_from", pa.array(times, pa.timestamp("us", "UTC")))


def reference(new: Index, current: Index, log: UpdateLog) -> tuple[set[str], set[str]]:
    """One ad at a time."""
    rows = {ad_id: row for row, ad_id in enumerate(new.id_table.ids(np.arange(len(new))))}
    merged = new.manifest.updates.seq if new.manifest.updates is not None else 0
    brought: dict[str, list[int]] = {}
    for update in log.read():
        if update.content is not None and update.seq > merged:
            brought.setdefault(update.ad_id, []).append(update.content.valid_from)
    lacking, older = set(), set()
    for row, ad_id in enumerate(current.id_table.ids(np.arange(len(current)))):
        if ad_id not in rows:
            if current.status[row] == ACTIVE and ad_id not in brought:
                lacking.add(ad_id)
        elif max([int(new.valid_from[rows[ad_id]]), *brought.get(ad_id, [])]) < current.valid_from[row]:
            older.add(ad_id)
    return lacking, older


def named(change: CatalogChange) -> tuple[set[str], set[str]]:
    return set(change.current.id_table.ids(change.lacking)), set(change.current.id_table.ids(change.older))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_lost_is_what_a_plain_loop_finds(
    build: Build, ads_table: Callable, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexing.catalog_change._AT_ONCE", 37)
    rng = np.random.default_rng(seed)
    table = ads_table(150)
    times = table["valid_from"].cast(pa.int64()).to_numpy()
    current = build("current", table)
    kept = rng.random(len(table)) < 0.8
    new = build("new", at_times(table, times + rng.integers(-2, 3, len(times)) * 1000).filter(pa.array(kept)))
    log = UpdateLog(tmp_path / "updates")
    log.append(
        [
            Update(
                ad_id=table["ad_id"][int(row)].as_py(),
                at=0,
                content=Content(scenario="shopping", valid_from=int(times[row] + rng.integers(-3, 3) * 1000)),
            )
            for row in rng.integers(0, len(table), 60)
        ]
    )
    position = UpdatePosition(log=log.end.log, seq=20)
    later = replace(new, manifest=msgspec.structs.replace(new.manifest, updates=position))
    for index in (new, later, current):
        found = catalog_change(index, current, log)
        lacking, older = reference(index, current, log)
        assert named(found) == (lacking, older)
        assert found.metrics["lacking_share"] == len(lacking) / int((current.status == ACTIVE).sum())
        assert found.num_shared == len(set(_ids(index)) & set(_ids(current)))
    assert reference(current, current, log) == (set(), set())
    assert all(reference(new, current, log))


def _ids(index: Index) -> list[str]:
    return index.id_table.ids(np.arange(len(index)))


def test_a_catalogue_that_lost_a_file_is_refused_and_a_smaller_loss_is_told(
    build: Build, bundles: Path, ads_table: Callable, tmp_path: Path
) -> None:
    table, store = ads_table(), DirectoryStore(tmp_path / "store")
    build("index", table)

    def candidate(name: str) -> Candidate:
        return Candidate(two_tower=bundles / "two_tower", heavy=None, index=tmp_path / name)

    def judged(name: str) -> Judged:
        return judge(store, candidate(name), ReleaseLimits(max_unknown_share=None))

    first = publish_release(store, candidate("index"))
    assert "lacking_share" not in first.metrics
    build("half", table.slice(0, 100))
    build("most", table.slice(0, 190))
    with pytest.raises(ReleaseRefused, match=r"lacking_share is 0\.\d+; max_lacking_share allows 0\.2"):
        publish_release(store, candidate("half"), limits=ReleaseLimits(max_unknown_share=None))
    found = judged("most").judgement
    assert found.failures == []
    assert found.warnings[0].startswith("lacks ")
    assert f"that are active in {first.index}, which serves: ad-19" in found.warnings[0]
    assert judged("index").judgement.warnings == []
    assert judged("index").metrics["lacking_share"] == judged("index").metrics["older_share"] == 0


def test_an_older_catalogue_over_a_newer_one_is_refused_or_told(
    build: Build, bundles: Path, ads_table: Callable, tmp_path: Path
) -> None:
    table = ads_table()
    times = table["valid_from"].cast(pa.int64()).to_numpy()
    build("old", table)
    build("new", at_times(table, times + 1_000_000))
    options = ["--two-tower", str(bundles / "two_tower"), "--store", str(tmp_path / "store")]

    def publish(name: str, *more: str) -> dict:
        result = CliRunner().invoke(app, ["publish", "--index", str(tmp_path / name), *options, *more, "--json"])
        if result.exception:
            raise result.exception
        return json.loads(result.stdout)

    publish("old")
    assert publish("new")["judgement"]["warnings"] == []
    with pytest.raises(ReleaseRefused, match="older_share is 1; max_older_share allows 0.2") as refused:
        publish("old")
    assert "holds 160 of 160 ads (100.00%) with an earlier valid_from than index-shopping-" in str(refused.value)
    assert "warning: its catalogue ends at 2001-" in str(refused.value)
    taken = publish("old", "--override", "the new one is wrong")
    assert len(taken["judgement"]["warnings"]) == 2
    assert taken["metrics"]["older_share"] == 1


def test_an_ad_that_only_an_update_brought_is_missed_where_it_is_gone_from_the_log(
    build: Build, bundles: Path, ads_table: Callable, tmp_path: Path
) -> None:
    store, table = DirectoryStore(tmp_path / "store"), ads_table()
    features = {"category": "shoes", "price": 3.0, "image": [0.1, 0.2]}
    content = Content(scenario="shopping", valid_from=10**15, features=features)
    store.append_updates([Update(ad_id="new-ad", at=10**15, status="active", content=content)])
    build("night-1", table, store.update_log())
    build("night-2", table)

    def publish(name: str) -> list[str]:
        parts = {"two_tower": bundles / "two_tower", "heavy": None, "index": tmp_path / name}
        release = publish_release(store, Candidate(**parts), limits=LOOSE)
        return release.judgement.warnings if release.judgement is not None else []

    assert publish("night-1") == []
    assert publish("night-2") == []  # the log brings it
    assert publish("night-1") == []
    store.update_log().set_aside()
    gone, *lacking = publish("night-2")
    assert "is gone; restore it" in gone
    assert [warning.split(" ads")[0] for warning in lacking] == [f"lacks 1 of {_active(tmp_path / 'night-1'):,}"]
    assert lacking[0].endswith("which serves: new-ad")


def _active(path: Path) -> int:
    return int((Index.open(path).status == ACTIVE).sum())
