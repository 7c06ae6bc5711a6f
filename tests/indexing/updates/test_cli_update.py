"""``adsieve index update``: what it takes, what it refuses, and that it is all or nothing."""

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import UNSET
from typer.testing import CliRunner, Result

from contracts.artifact import READY
from contracts.errors import ArtifactError, InputError, LogError
from indexing.cli import app
from indexing.stores import open_store
from indexing.update_record import Update

FEATURES = {"category": "shoes", "price": 3.5, "image": [0.5, 0.25]}
CONTENT = {"scenario": "shopping", "valid_from": "2040-01-01T00:00:00Z", "features": FEATURES}


@pytest.fixture(scope="module")
def store(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one release of ``shopping``."""
    root = tmp_path_factory.mktemp("store")
    open_store(root).publish(two_tower=built.two_tower.path, heavy=built.heavy.path, index=built.path)
    return root


@pytest.fixture
def update(store: Path) -> Any:
    """Runs the command; gives its result and the updates that it appended."""

    def run(*arguments: object, given: bytes = b"") -> tuple[Result, list[Update]]:
        log = open_store(store).update_log()
        before = log.end
        result = CliRunner().invoke(app, ["update", *map(str, arguments), "--store", str(store)], input=given)
        return result, list(log.read(before))

    return run


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def test_options_and_lines_are_appended_in_order(update: Any, tmp_path: Path) -> None:
    file = tmp_path / "updates.jsonl"
    file.write_bytes(
        line(ad_id="ad-1", status="paused", at="1970-01-01T00:00:01+00:00") + b"\n" + line(ad_id="ü", bid=2)
    )
    options = ["--takedown", "a", "--restore", "b", "--status", "x=y=active", "--bid", "c=none", "--budget", "d=0"]
    result, appended = update(file, "-", *options, "--json", given=line(ad_id="z", budget=None, takedown=False))
    assert result.exit_code == 0, result.output
    assert [one.ad_id for one in appended] == ["ad-1", "ü", "z", "a", "b", "x=y", "c", "d"]
    first, second, third, down, up, active, no_bid, spent = appended
    assert (first.at, first.status, second.bid) == (1_000_000, "paused", 2.0)
    assert (third.budget, third.takedown, third.bid) == (None, False, UNSET)
    assert (down.takedown, up.takedown, active.status, no_bid.bid, spent.budget) == (True, False, "active", None, 0.0)
    told = json.loads(result.stdout)
    assert (told["updates"], told["contents"], told["position"]["seq"]) == (8, 0, appended[-1].seq)


def test_content_is_taken_with_features_that_only_later_models_read(update: Any) -> None:
    content = CONTENT | {"objective": "click", "features": FEATURES | {"smell": "nice"}}
    result, appended = update("-", given=line(ad_id="n", bid=1, content=content))
    assert result.exit_code == 0, result.output
    assert "features that no current model reads, kept for later ones: smell" in result.output
    assert appended[0].content.features == content["features"]
    assert appended[0].at == appended[0].content.valid_from == 2_208_988_800_000_000
    assert "content of 1 ads is valid from more than a day ahead, and counts at once: n" in result.output


def test_a_state_with_older_content_is_as_old_as_the_update(update: Any) -> None:
    content = CONTENT | {"valid_from": "2001-01-01T00:00:00Z"}
    before = time.time_ns() // 1000
    result, appended = update("-", given=line(ad_id="n", bid=1, content=content))
    assert result.exit_code == 0, result.output
    assert before <= appended[0].at <= time.time_ns() // 1000
    assert appended[0].content.valid_from < before
    assert "ahead" not in result.output


def test_ads_that_no_serving_release_knows_are_told(update: Any) -> None:
    update("-", given=line(ad_id="by-update", content=CONTENT))
    result, appended = update("--takedown", "ad-1", "--takedown", "by-update", "--takedown", "typo", "--bid", "x=1")
    assert result.exit_code == 0, result.output
    assert "warning: 2 of 4 ads are in no serving release: typo, x\n" in result.output
    assert len(appended) == 4


def test_a_damaged_line_is_told(update: Any, store: Path) -> None:
    update("--takedown", "ad-1")
    path = max((store / "updates").glob("*.jsonl"))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"takedown"', b'"takedawn"', 1))
    try:
        result, _ = update("--bid", "ad-2=1")
        assert result.exit_code == 0, result.output
        assert "damaged lines in all, their updates are lost" in result.output
    finally:
        path.write_bytes(whole)


def test_a_damaged_manifest_of_the_log_is_built_again(update: Any, store: Path) -> None:
    update("--takedown", "ad-1")
    before = open_store(store).update_log().end
    (store / "updates" / "log.json").write_bytes(b"{")
    result = CliRunner().invoke(app, ["update", "--bid", "ad-2=1", "--store", str(store)])
    assert result.exit_code == 0, result.output
    after = open_store(store).update_log().end
    assert (after.log, after.seq) == (before.log, before.seq + 1)


def test_a_log_that_is_gone_is_not_begun_again_unasked(built: Any, tmp_path: Path) -> None:
    index = tmp_path / "index"
    shutil.copytree(built.path, index)
    data = json.loads((index / "manifest.json").read_bytes())
    manifest = json.dumps(data | {"updates": {"log": "the-lost-one", "seq": 7}}).encode()
    (index / "manifest.json").write_bytes(manifest)
    (index / READY).write_text(hashlib.sha256(manifest).hexdigest())
    store = tmp_path / "store"
    open_store(store).publish(two_tower=built.two_tower.path, heavy=built.heavy.path, index=index)
    command = ["update", "--takedown", "ad-1", "--store", str(store)]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, ArtifactError)
    assert "the log of updates the-lost-one, which index" in str(result.exception)
    assert "--new-log" in str(result.exception)
    assert open_store(store).update_log().end is None
    for _ in range(2):
        assert CliRunner().invoke(app, [*command, "--new-log"]).exit_code == 0
    assert CliRunner().invoke(app, command).exit_code == 0
    assert len(list(store.glob("updates-aside-*"))) == 1
    assert open_store(store).update_log().end.seq == 3, "the second one begins with what the first one had stopped"


def test_rows_of_parquet_are_content_as_of_their_time(update: Any, ads_table: Any, tmp_path: Path) -> None:
    table = ads_table(20).filter(pa.array([number % 5 != 4 for number in range(20)]))
    pq.write_table(table, tmp_path / "ads.parquet")
    result, appended = update(tmp_path / "ads.parquet")
    assert result.exit_code == 0, result.output
    rows = table.to_pylist()
    for row, one, at in zip(rows, appended, table["valid_from"].cast(pa.int64()).to_pylist(), strict=True):
        assert (one.ad_id, one.at, one.content.valid_from, one.status) == (row["ad_id"], at, at, row["status"])
        assert (one.bid, one.content.objective, one.content.advertiser_id) == (
            row["bid"],
            row["objective"],
            row["advertiser_id"],
        )
        assert one.content.features == {name: row[name] for name in ("category", "price", "image")}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (line(ad_id=5, bid=1), "ad_id: expected text, got 5"),
        (line(bid=1), "ad_id: missing"),
        (line(ad_id="a", bid=-1), "bid: expected a finite number of at least 0, or null, got -1"),
        (line(ad_id="a", bid=1e39), "bid: expected a finite number"),
        (line(ad_id="a", bid=True), "bid: expected a finite number"),
        (b'{"ad_id": "a", "bid": NaN}', "not JSON"),
        (line(ad_id="a", budget="much"), 'budget: expected a finite number or null, got "much"'),
        (
            line(ad_id="a", status="pased"),
            "expected one of active, paused, removed, got \"pased\"; did you mean 'paused'",
        ),
        (line(ad_id="a", takedown=1), "takedown: expected true or false, got 1"),
        (line(ad_id="a", bid=1, at="2026-01-01T00:00:00"), "at: expected an RFC 3339 time with a zone"),
        (line(ad_id="a", bids=1), "bids: unknown field, expected one of ad_id, .*did you mean 'bid'"),
        (line(ad_id="a"), "expected at least one of status, bid"),
        (b"[1]", r"the line: expected an object, got \[1\]"),
        (b"\xff", "not JSON"),
        (b'{"ad_id":' + b"[" * 100_000, "nested too deeply"),
        (line(ad_id="a", bid=1, at="9999-12-31T23:59:59-12:00"), "at: expected .*, of the years 1 to 9999 UTC"),
        (
            line(ad_id="a", content={**CONTENT, "scenario": "x"}),
            'content.scenario: "x" has no release, expected one of \'sh',
        ),
        (
            line(ad_id="a", content={**CONTENT, "features": {"price": 1}}),
            r"content.features: lacks \['category', 'image'\]",
        ),
        (line(ad_id="a", content={**CONTENT, "features": FEATURES | {"price": "x"}}), "column 'price' has type string"),
        (
            line(ad_id="a", content={**CONTENT, "features": FEATURES | {"image": [1]}}),
            "column 'image' has a list of anoth",
        ),
        (
            line(ad_id="a", content={**CONTENT, "objective": "fame"}),
            "content.objective: expected null or one of 'click'",
        ),
        (line(ad_id="a", content={**CONTENT, "bid": 1}), "content.bid: unknown field"),
    ],
)
def test_a_line_that_is_wrong_refuses_all_and_says_where(update: Any, given: bytes, message: str) -> None:
    result, appended = update("-", given=line(ad_id="fine", bid=1) + given)
    assert appended == []
    assert isinstance(result.exception, InputError)
    with pytest.raises(InputError, match=r"standard input: line 2: .*" + message):
        raise result.exception


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to update: expected files, or one of --takedown"),
        (["no-such-file"], "no-such-file: no such file, expected JSON Lines or Parquet"),
        (["--bid", "a"], "--bid a: expected AD=VALUE"),
        (["--bid", "a=much"], "--bid a=much: expected a number or none after the last =, got 'much'"),
        (["--bid", "a=nan"], "--bid a=nan: bid: expected a finite number"),
        (["--status", "a=gone"], "--status a=gone: status: expected one of active, paused, removed"),
    ],
)
def test_options_that_are_wrong_are_named(update: Any, arguments: list[str], message: str) -> None:
    result, appended = update(*arguments)
    assert appended == []
    with pytest.raises(InputError, match=message):
        raise result.exception


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("price", [1.0, float("nan")], "row 1: price: expected finite numbers or null, got nan"),
        ("bid", [-1.0, None], "row 0: bid: expected a finite number of at least 0"),
        ("status", ["active", "asleep"], "row 1: status: expected one of active, paused"),
        ("scenario", [None, "shopping"], "row 0: scenario: expected text, got null"),
        ("valid_from", pa.array(np.zeros(2, np.int64), pa.timestamp("us")), "column valid_from has type timestamp"),
    ],
)
def test_a_row_that_is_wrong_refuses_the_file(
    update: Any, ads_table: Any, tmp_path: Path, column: str, values: Any, message: str
) -> None:
    pq.write_table(ads_table(2, **{column: values}), tmp_path / "ads.parquet")
    result, appended = update(tmp_path / "ads.parquet", "--takedown", "a")
    assert appended == []
    with pytest.raises((InputError, LogError), match=message):
        raise result.exception


def test_a_store_without_a_release_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["update", "--takedown", "a", "--store", str(tmp_path / "typo")])
    with pytest.raises(InputError, match="no release here"):
        raise result.exception
    assert not (tmp_path / "typo").exists()
