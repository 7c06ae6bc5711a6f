"""A build with a log of updates equals a build of the catalogue that the log describes, written by a plain loop."""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import time_ns

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import UNSET

from contracts.records import read_table
from contracts.release import IndexManifest
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.nightly import build_index
from indexing.update_log import UpdateLog
from indexing.update_record import Content, Update

FEATURES = ("category", "price", "image")
LATEST = 3 * 10**15
"""Rows and updates may lie ahead of now."""

NOW = time_ns() // 1000


def build(ads: Path, bundles: Path, out: Path, log: UpdateLog | None = None, as_of: int | None = None) -> IndexManifest:
    return build_index(
        ads=ads,
        two_tower=bundles / "two_tower",
        heavy=bundles / "heavy",
        out=out,
        config=IndexConfig(threads=1, batch_size=16, engine="onnxruntime_cpu", precision="fp32"),
        updates=log,
        as_of=None if as_of is None else datetime.fromtimestamp(as_of / 10**6, UTC),
    )


def random_updates(count: int, seed: int) -> list[Update]:
    rng = random.Random(seed)
    updates = []
    for _ in range(count):
        number = rng.randrange(230)  # 200 of the catalogue, and new ones
        ad_id = f"ad-{number}-ü" if number % 7 == 0 else f"ad-{number}"
        content = None
        if rng.random() < 0.5:
            content = Content(
                scenario=rng.choice(["shopping", "shopping", "standard"]),
                valid_from=rng.randrange(LATEST),
                advertiser_id=rng.choice([None, "advertiser-1", "advertiser-new"]),
                objective=rng.choice([None, "click", "impression"]),
                features={
                    "category": rng.choice([None, "shoes", "x"]),
                    "price": rng.choice([None, 3, 4.5, 0.0]),
                    "image": rng.choice([None, [0.25, 0.5]]),
                },
            )
        status = rng.choice([None, "active", "paused", "removed"])
        bid = rng.choice([UNSET, None, 0.5, 2.0])
        takedown = True if content is None and status is None and bid is UNSET else None
        at = rng.randrange(LATEST)
        updates.append(Update(ad_id=ad_id, at=at, status=status, bid=bid, takedown=takedown, content=content))
    return updates


def described(ads: Path, updates: list[Update], as_of: int) -> tuple[dict[str, dict], list[dict]]:
    """By a loop, the catalogue's rows that stay, by ad, and the rows of ads whose content is of an update."""
    table = read_table(ads)
    times = table["valid_from"].cast(pa.int64()).to_pylist()
    newest: dict[str, dict] = {}
    for row, time in zip(table.to_pylist(), times, strict=True):
        if time <= as_of and (row["ad_id"] not in newest or time > newest[row["ad_id"]]["time"]):
            newest[row["ad_id"]] = {**row, "time": time, "seq": None}
    rows = dict(newest)
    for seq, update in enumerate(updates, 1):
        content = update.content
        if content is None or content.valid_from > as_of:
            continue
        if update.ad_id not in rows or content.valid_from > rows[update.ad_id]["time"]:
            rows[update.ad_id] = {
                "ad_id": update.ad_id,
                "scenario": content.scenario,
                "advertiser_id": content.advertiser_id,
                "objective": content.objective,
                **content.features,
                "time": content.valid_from,
                "seq": seq,
            }
    for ad_id, row in rows.items():
        base = newest.get(ad_id, {"time": -1, "status": None, "bid": None})
        row["status"], row["bid"] = base["status"], base["bid"]
        latest = {"status": None, "bid": None}
        for seq, update in enumerate(updates, 1):
            if update.ad_id == ad_id and update.at <= as_of:
                latest["status"] = (seq, update.at, update.status) if update.status is not None else latest["status"]
                latest["bid"] = (seq, update.at, update.bid) if update.bid is not UNSET else latest["bid"]
        for name, said in latest.items():
            began = base["time"] if base["time"] <= NOW else -1  # a row that lies ahead overrules nothing
            if said is not None and (said[1] > began or (row["seq"] is not None and said[0] >= row["seq"])):
                row[name] = said[2]
    ours = {ad_id: row for ad_id, row in rows.items() if row["scenario"] == "shopping"}
    merged = sorted((row for row in ours.values() if row["seq"] is not None), key=lambda row: row["seq"])
    return {ad_id: row for ad_id, row in ours.items() if row["seq"] is None}, merged


def write_described(ads: Path, target: Path, kept: dict[str, dict], merged: list[dict]) -> Path:
    target.mkdir()
    for file in sorted(ads.iterdir()):
        table = pq.read_table(file)
        times = table["valid_from"].cast(pa.int64()).to_pylist()
        rows = [
            {**row, **{name: kept[row["ad_id"]][name] for name in ("status", "bid")}}
            for row, time in zip(table.to_pylist(), times, strict=True)
            if row["ad_id"] in kept and kept[row["ad_id"]]["time"] == time
        ]
        pq.write_table(pa.Table.from_pylist(rows, table.schema), target / file.name)
    whole = [{**row, "valid_from": row["time"]} for row in merged]
    columns = {
        field.name: pa.array([row[field.name] for row in whole], pa.int64()).cast(field.type)
        if field.name == "valid_from"
        else pa.array([row[field.name] for row in whole], field.type)
        for field in table.schema
    }
    pq.write_table(pa.table(columns), target / "z.parquet")
    return target


def blocks(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in ("READY", "manifest.json")
    }


@pytest.mark.parametrize(("seed", "as_of"), [(0, None), (1, None), (2, LATEST // 2), (3, LATEST // 4)])
def test_a_build_with_updates_is_the_build_of_what_they_describe(
    ads: Path, bundles: Path, tmp_path: Path, seed: int, as_of: int | None
) -> None:
    updates = random_updates(400, seed)
    log = UpdateLog(tmp_path / "updates")
    log.append(updates[:100])
    log.append(updates[100:])
    manifest = build(ads, bundles, tmp_path / "index", log, as_of)
    kept, merged = described(ads, updates, as_of or LATEST)
    assert len(merged) > 20
    assert len(kept) > 20
    expected = build(write_described(ads, tmp_path / "described", kept, merged), bundles, tmp_path / "expected")
    assert blocks(tmp_path / "index") == blocks(tmp_path / "expected")
    assert manifest.statuses == expected.statuses
    assert manifest.updates == log.end
    counts = manifest.catalog
    assert (counts["kept"], counts["merged"], counts["refused"]) == (len(kept), len(merged), 0)
    left_out = counts["later"] + counts["superseded"] + counts["other_scenario"]
    assert counts["rows"] == left_out + counts["kept"] == 250


def content(valid_from: int, **changes: object) -> Content:
    features = {"category": "shoes", "price": 3.0, "image": [0.0, 1.0], **changes}
    return Content(scenario="shopping", valid_from=valid_from, features=features)


def test_content_that_cannot_be_embedded_is_as_if_it_had_never_come(ads: Path, bundles: Path, tmp_path: Path) -> None:
    sound = [Update(ad_id="ad-1", at=1, content=content(LATEST)), Update(ad_id="new", at=1, content=content(5))]
    faulty = [
        Update(ad_id="ad-1", at=1, content=content(LATEST + 1, price="high")),
        Update(ad_id="ad-2", at=1, content=content(LATEST, image=[1.0])),
        Update(ad_id="ad-3", at=1, content=content(LATEST, category=[1, 2])),
        Update(ad_id="bad", at=1, content=Content(scenario="shopping", valid_from=7)),
    ]
    logs = {name: UpdateLog(tmp_path / name) for name in ("sound", "both")}
    logs["sound"].append(sound)
    logs["both"].append([*faulty, *sound])
    build(ads, bundles, tmp_path / "expected", logs["sound"])
    manifest = build(ads, bundles, tmp_path / "index", logs["both"])
    assert blocks(tmp_path / "index") == blocks(tmp_path / "expected")
    assert manifest.catalog["refused"] == 4
    assert sum(manifest.faults.values()) >= 4
    assert all(fault.startswith("updates: ") for fault in manifest.faults)


def test_an_empty_log_changes_nothing(ads: Path, bundles: Path, tmp_path: Path) -> None:
    build(ads, bundles, tmp_path / "expected")
    assert build(ads, bundles, tmp_path / "index", UpdateLog(tmp_path / "updates")).updates is None
    assert blocks(tmp_path / "index") == blocks(tmp_path / "expected")


def test_how_far_the_log_was_merged_is_part_of_the_version(ads: Path, bundles: Path, tmp_path: Path) -> None:
    log = UpdateLog(tmp_path / "updates")
    manifests = []
    for name in ("a", "b"):
        log.append([Update(ad_id="ad-1", at=1, takedown=True)])
        manifests.append(build(ads, bundles, tmp_path / name, log))
    assert manifests[0].files == manifests[1].files
    assert manifests[0].version != manifests[1].version


def test_an_ad_that_moved_away_is_not_in_the_index(ads: Path, bundles: Path, tmp_path: Path) -> None:
    log = UpdateLog(tmp_path / "updates")
    log.append([Update(ad_id="ad-1", at=1, content=Content(scenario="standard", valid_from=LATEST))])
    assert build(ads, bundles, tmp_path / "index", log).num_ads == 159
    assert Index.open(tmp_path / "index").id_table.lookup(["ad-1"]).tolist() == [-1]


def test_a_catalogue_without_state_columns_takes_them_from_updates(
    ads_table: Callable[..., pa.Table], bundles: Path, tmp_path: Path
) -> None:
    (tmp_path / "ads").mkdir()
    table = ads_table(50).drop_columns(["status", "bid", "objective", "advertiser_id"])
    pq.write_table(table, tmp_path / "ads" / "a.parquet")
    log = UpdateLog(tmp_path / "updates")
    merged = Content(
        scenario="shopping", valid_from=9, advertiser_id="a", objective="click", features=content(9).features
    )
    updates = [Update(ad_id="ad-1", at=LATEST, status="paused", bid=4.0), Update(ad_id="new", at=1, content=merged)]
    log.append(updates)
    build(tmp_path / "ads", bundles, tmp_path / "index", log)
    index = Index.open(tmp_path / "index")
    [known, new] = index.id_table.lookup(["ad-1", "new"])
    assert (index.status[known], index.bids[known]) == (1, 4.0)
    assert index.advertiser_ids.ids(index.advertisers[[new]]) == ["a"]
    assert index.manifest.objectives[index.objectives[new]] == "click"
