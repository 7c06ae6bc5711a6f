"""What `prune` leaves of the log of updates loses nothing: for hosts that come later, and for the builds to come."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import UNSET
from typer.testing import CliRunner

from contracts.errors import ArtifactError
from indexing.cli import app
from indexing.compaction import Compaction, compact
from indexing.config import IndexConfig
from indexing.held_content import HeldContent
from indexing.index import Index
from indexing.nightly import build_index
from indexing.redis_store import RedisStore
from indexing.store import DirectoryStore
from indexing.update_log import UpdateLog
from indexing.update_record import Content, Update

FEATURES = {"category": "shoes", "price": 3.0, "image": [0.1, 0.2]}
LATE = 2 * 10**15
FAR = 10**18
"""A time of compaction at which all states are old."""


def content(valid_from: int, scenario: str = "shopping") -> Content:
    return Content(scenario=scenario, valid_from=valid_from, features=FEATURES)


@pytest.fixture
def night(bundles: Path, tmp_path: Path) -> Callable[..., Index]:
    """Builds the index of a catalogue with a store, publishes it and prunes to it alone."""

    def night(store: DirectoryStore, table: pa.Table, name: str) -> Index:
        pq.write_table(table, tmp_path / f"{name}.parquet")
        build_index(
            ads=str(tmp_path / f"{name}.parquet"),
            two_tower=bundles / "two_tower",
            heavy=bundles / "heavy",
            out=tmp_path / name,
            config=IndexConfig(threads=1, precision="fp32"),
            updates=store.update_log(),
        )
        store.publish(two_tower=bundles / "two_tower", heavy=bundles / "heavy", index=tmp_path / name)
        return Index.open(tmp_path / name)

    return night


def contents(store: DirectoryStore) -> dict[str, int]:
    return {one.ad_id: one.content.valid_from for one in store.update_log().read() if one.content is not None}


def row_of(index: Index, ad_id: str) -> int:
    return int(index.id_table.lookup([ad_id])[0])


def test_an_ad_that_only_an_update_brought_outlives_every_prune_until_a_catalogue_has_it(
    night: Callable[..., Index], ads_table: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: FAR * 1000)
    store, table = DirectoryStore(tmp_path / "store"), ads_table()
    new = Update(ad_id="new", at=LATE, status="active", bid=1.5, content=content(LATE))
    changed = Update(ad_id="ad-1", at=LATE, content=content(LATE))
    store.append_updates([new, changed, Update(ad_id="ad-2", at=LATE, bid=3.0), Update(ad_id="ad-2", at=LATE, bid=4.0)])
    for number in range(3):
        index = night(store, table, f"night-{number}")
        row = row_of(index, "new")
        assert (index.status[row], index.bids[row], index.valid_from[row]) == (0, np.float32(1.5), LATE)
        assert index.valid_from[row_of(index, "ad-1")] == LATE
        pruned = store.prune(1)
        assert pruned.waiting == ["new", "ad-1"]
        assert (pruned.updates, pruned.replaced) == ((2, 1) if number == 0 else (0, 0))
        assert contents(store) == {"new": LATE, "ad-1": LATE}

    row = ads_table(1, ad_id=["new"], valid_from=pa.array([LATE], table["valid_from"].type)).cast(table.schema)
    table = pa.concat_tables([table, row])
    night(store, table, "with-new")
    assert store.prune(2).waiting == ["ad-1"]  # one index of two has it of a catalogue: that is enough
    assert contents(store) == {"ad-1": LATE}
    times = table["valid_from"].cast(pa.int64()).to_numpy().copy()
    times[1] = LATE + 1
    place = table.schema.get_field_index("valid_from")
    night(store, table.set_column(place, "valid_from", pa.array(times, table["valid_from"].type)), "later")
    assert store.prune(1).waiting == []
    assert list(store.update_log().read()) == []
    index = night(store, table, "last")
    assert index.valid_from[row_of(index, "new")] == LATE


@pytest.mark.parametrize("seed", range(3))
def test_content_is_held_where_a_plain_loop_finds_it_so(
    night: Callable[..., Index], ads_table: Callable, tmp_path: Path, seed: int
) -> None:
    rng, store, table = np.random.default_rng(seed), DirectoryStore(tmp_path / "store"), ads_table(60)
    times = dict(zip(table["ad_id"].to_pylist(), table["valid_from"].cast(pa.int64()).to_pylist(), strict=True))
    names = [*times, "new-1", "new-2", "new-3"]

    def some(count: int) -> list[Update]:
        updates = []
        for name in rng.choice(names, count):
            moment = times.get(name, 10**14) + int(rng.integers(-2, 3))
            scenario = "shopping" if rng.random() < 0.9 else "standard"
            updates.append(Update(ad_id=str(name), at=0, content=content(moment, scenario)))
        return updates

    store.append_updates(some(40))
    index = night(store, table, "index")
    later = some(80)
    rows = {ad_id: row for row, ad_id in enumerate(index.id_table.ids(np.arange(len(index))))}
    expected = []
    for update in later:
        row, moment = rows.get(update.ad_id), update.content.valid_from if update.content is not None else 0
        if row is None:
            expected.append(False)
        elif index.valid_from[row] == times.get(update.ad_id):  # the catalogue's row
            expected.append(bool(index.valid_from[row] >= moment))
        else:
            expected.append(bool(index.valid_from[row] > moment))
    assert HeldContent([tmp_path / "index"])(later) == expected
    assert set(expected) == {True, False}
    (tmp_path / "index" / "valid-from.npy").write_bytes(b"")
    assert not any(HeldContent([tmp_path / "index", tmp_path / "nowhere"])(later))


def test_what_goes_is_counted_as_merged_or_replaced_and_a_dry_run_counts_the_same(tmp_path: Path) -> None:
    log = UpdateLog(tmp_path / "updates")
    log.append(
        [
            Update(ad_id="a", at=0, bid=1.0),  # replaced
            Update(ad_id="a", at=0, bid=2.0),  # old
            Update(ad_id="b", at=0, content=content(1)),  # held
            Update(ad_id="c", at=0, content=content(1), bid=1.0),  # waits, with its bid
            Update(ad_id="c", at=0, content=content(2), takedown=True),  # waits
            Update(ad_id="d", at=0, status="paused", takedown=False),  # replaced
            Update(ad_id="d", at=0, status="active", takedown=False),  # old
        ]
    )
    before = {path.name: path.read_bytes() for path in log.directory.iterdir()}

    def held(updates: list[Update]) -> list[bool]:
        return [update.ad_id == "b" for update in updates]

    expected = Compaction(before=7, after=2, floor=7, replaced=2, waiting=["c"])
    assert compact(log, [log.end], held=held, now_us=FAR, dry_run=True) == expected
    assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == before
    assert compact(log, [log.end], held=held, now_us=FAR) == expected
    assert [(one.seq, one.bid) for one in log.read()] == [(4, 1.0), (5, UNSET)]


def test_a_damaged_log_is_found_before_anything_is_removed(publish: Callable, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    publish(store)
    publish(store, "other_")
    store.append_updates([Update(ad_id=f"ad-{number}", at=0, takedown=True) for number in range(3)])
    segment = next((tmp_path / "store" / "updates").glob("*.jsonl"))
    sound = segment.read_bytes()
    segment.write_bytes(sound.replace(b"ad-1", b"ad-9"))
    files = sorted(tmp_path.glob("store/*/*"))
    for dry_run in (True, False):
        with pytest.raises(ArtifactError, match="1 damaged lines in all: the log is not compacted"):
            store.prune(1, dry_run=dry_run)
        assert sorted(tmp_path.glob("store/*/*")) == files
        assert len(store.list("shopping")) == 2
    (tmp_path / "store" / "updates" / "log.json").write_text("{")
    with pytest.raises(ArtifactError, match="log.json"):
        store.prune(1)
    assert sorted(tmp_path.glob("store/*/*")) == files


def test_the_command_tells_what_goes_and_what_waits(
    night: Callable[..., Index], ads_table: Callable, tmp_path: Path
) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.append_updates([Update(ad_id="ad-2", at=LATE, bid=bid) for bid in (3.0, 4.0)])
    store.append_updates([Update(ad_id=f"new-{number}", at=LATE, content=content(LATE)) for number in range(7)])
    night(store, ads_table(), "index")

    def prune(*options: str) -> str:
        result = CliRunner().invoke(app, ["prune", "--store", str(tmp_path / "store"), *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    told = json.loads(prune("--dry-run", "--json"))
    assert (told["updates"], told["replaced"], len(told["waiting"])) == (1, 1, 7)
    expected = "0 updates that every kept index has merged and 1 that later ones replace "
    assert f"{expected}to be dropped" in prune("--dry-run")
    output = prune()
    assert f"{expected}dropped" in output
    assert "content of 7 ads is in updates alone; it stays in the log until a catalogue has it: new-0, new-1" in output


def test_a_host_that_comes_after_a_prune_has_the_takedowns_from_before(host: Callable[[str], RedisStore]) -> None:
    first = host("first")
    first.append_updates([Update(ad_id="down", at=1, takedown=True), *(Update(ad_id="a", at=1, bid=2.0),) * 2])
    log = first.update_log()
    compact(log, [log.end], now_us=FAR)
    assert first._stream.compact() == 2
    later = host("later")
    later.refresh()
    assert [(one.seq, one.ad_id, one.takedown) for one in later.update_log().read()] == [(1, "down", True)]
    first.append_updates([Update(ad_id="b", at=1, bid=1.0)])
    later.refresh()
    assert later.update_log().end == first.update_log().end
