"""The conversion of the real log's published layouts, on a small made data set with their columns."""

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from adlogs.fit import fit_log, named_schema
from adlogs.kuairand import convert_kuairand
from adlogs.kuairand_source import CSV_EARLIER, CSV_ITEMS, CSV_LATER, CSV_RANDOM, CSV_USERS, PARQUET_FILES
from adlogs.validate import validate_log
from contracts.encoding import Encoder
from contracts.errors import LogError
from contracts.records import LogPaths, utc_micros
from contracts.schema import Feature, FeatureSchema, SequenceField, Table
from modeling.examples import encode_log

USERS, VIDEOS, ROWS = 12, 30, 1600
DAY_MS, ZONE_MS = 24 * 3_600_000, 8 * 3_600_000
BEGIN_MS = int(datetime(2022, 4, 7, 16, tzinfo=UTC).timestamp() * 1000)  # midnight of 8 April in UTC+8
OUTCOMES = ("is_click", "is_like", "is_follow", "is_comment", "is_forward", "is_profile_enter", "long_view")

Rows = dict[str, np.ndarray]


def made_rows(seed: int = 0) -> Rows:
    """Impressions of 31 days: one user id and moment comes twice, with two videos."""
    random = np.random.default_rng(seed)
    time_ms = np.sort(BEGIN_MS + random.integers(0, 31 * DAY_MS, ROWS))
    user = 100 + random.integers(0, USERS, ROWS)
    video = 1000 + (random.random(ROWS) ** 2 * VIDEOS).astype(int)
    time_ms[-2], user[-2], video[-2], video[-1] = time_ms[-1], user[-1], 1000, 1001
    rows = {"user_id": user, "video_id": video, "time_ms": time_ms, "tab": random.integers(0, 5, ROWS)}
    local = (time_ms + ZONE_MS) // 1000
    dates = [datetime.fromtimestamp(int(second), UTC) for second in local]
    rows["date"] = np.array([int(date.strftime("%Y%m%d")) for date in dates])
    rows["hourmin"] = np.array([date.hour * 100 for date in dates])
    rates = {"is_click": 0.5, "long_view": 0.3, "is_like": 0.2}
    rows |= {name: (random.random(ROWS) < rates.get(name, 0.05)).astype(int) for name in OUTCOMES}
    rows["play_time_ms"] = random.integers(0, 4, ROWS) * 1000
    rows |= {name: np.zeros(ROWS, int) for name in ("is_hate", "profile_stay_time", "comment_stay_time", "is_rand")}
    rows["duration_ms"] = np.full(ROWS, 9000)
    return rows


def made_items() -> pa.Table:
    number = np.arange(VIDEOS)
    tags = ["39", "39,68", "unknown", "3"]
    return pa.table(
        {
            "video_id": 1000 + number,
            "author_id": 50 + number // 3,
            "video_type": np.where(number % 7, "NORMAL", "AD"),
            "upload_dt": np.where(number % 2, "2022-04-09", "2022-04-10"),
            "upload_type": np.where(number % 3, "Web", "Kmovie"),
            "visible_status": np.zeros(VIDEOS),
            "video_duration": pa.array(number * 4000.0, mask=number == 5),
            "server_width": np.full(VIDEOS, 720.0),
            "server_height": np.where(number % 2, 1280.0, 720.0),
            "music_id": number % 10,
            "music_type": pa.array(np.full(VIDEOS, 9.0), mask=number == 3),
            "tag": [tags[index % 4] for index in range(VIDEOS)],
        }
    )


def made_users() -> pa.Table:
    number = np.arange(USERS)
    counts = ("follow_user_num", "fans_user_num", "friend_user_num", "register_days")
    columns: dict[str, Any] = {
        "user_id": 100 + number,
        "user_active_degree": np.where(number % 2, "full_active", "low"),
    }
    columns |= {"is_lowactive_period": np.zeros(USERS, int), "is_live_streamer": np.where(number % 2, 1, -124)}
    columns |= {"is_video_author": number % 2}
    columns |= dict.fromkeys(counts, number * 10) | {f"{name}_range": np.full(USERS, "[0,9)") for name in counts}
    for hot in range(18):
        columns[f"onehot_feat{hot}"] = pa.array(number % 3, mask=(number == 4) & (hot > 11))
    return pa.table(columns)


def write_csv_layout(folder: Path, rows: Rows) -> Path:
    """The published files; every twentieth row is a random exposure."""
    folder.mkdir()
    table, later = pa.table(rows), rows["date"] >= 20220422
    is_random = later & (np.arange(ROWS) % 20 == 0)
    for name, of_file in ((CSV_EARLIER, ~later), (CSV_LATER, later & ~is_random), (CSV_RANDOM, is_random)):
        csv.write_csv(table.filter(pa.array(of_file)), folder / name)
    csv.write_csv(made_items(), folder / CSV_ITEMS)
    csv.write_csv(made_users(), folder / CSV_USERS)
    return folder


def write_parquet_layout(folder: Path, rows: Rows) -> Path:
    """Impressions from 25 April on, and histories of half of the users; one history ends within the log."""
    folder.mkdir()
    late = rows["date"] >= 20220425
    first = int(rows["time_ms"][late].min())
    known = 100 + np.arange(0, USERS, 2)
    last = np.full(len(known), first - 3_600_000)
    last[0] = np.sort(rows["time_ms"][late & (rows["user_id"] == known[0])])[1]
    sequences = {
        "user_id": pa.array(known),
        "history_len": pa.array(np.full(len(known), 70)),
        "last_time_ms": pa.array(last),
        "watch_seq": pa.array([[1000, 1003, 1003]] * len(known), pa.list_(pa.int64())),
        "like_seq": pa.array([[]] * len(known), pa.list_(pa.int64())),
        "long_watch_seq": pa.array([[1003]] * len(known), pa.list_(pa.int64())),
    }
    pq.write_table(pa.table(rows).filter(pa.array(late)), folder / PARQUET_FILES["impressions"])
    pq.write_table(made_items(), folder / PARQUET_FILES["items"])
    pq.write_table(made_users(), folder / PARQUET_FILES["users"])
    pq.write_table(pa.table(sequences), folder / PARQUET_FILES["sequences"])
    return folder


class Converted:
    """A converted log: its datasets as lists of rows, requests and ads by id."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.paths = directory, LogPaths.under(directory)
        self.split = json.loads((directory / "split.json").read_text())
        self.tables = {name: pq.read_table(directory / name) for name in ("requests", "candidates", "ads")}
        self.requests = {row["request_id"]: row for row in self.tables["requests"].to_pylist()}
        self.candidates = self.tables["candidates"].to_pylist()
        self.winners = [row for row in self.candidates if row["stage"] == "winner"]
        self.ads: dict[str, list[dict[str, Any]]] = {}
        for row in sorted(self.tables["ads"].to_pylist(), key=lambda row: row["valid_from"]):
            self.ads.setdefault(row["ad_id"], []).append(row)

    def ad_at(self, ad_id: str, moment: datetime) -> dict[str, Any]:
        return [row for row in self.ads[ad_id] if row["valid_from"] <= moment][-1]


@pytest.fixture(scope="module")
def rows() -> Rows:
    return made_rows()


@pytest.fixture(scope="module")
def csv_folder(tmp_path_factory: pytest.TempPathFactory, rows: Rows) -> Path:
    return write_csv_layout(tmp_path_factory.mktemp("csv") / "source", rows)


@pytest.fixture(scope="module")
def from_csv(tmp_path_factory: pytest.TempPathFactory, csv_folder: Path) -> Converted:
    out = tmp_path_factory.mktemp("csv_log") / "log"
    convert_kuairand(csv_folder, out)
    return Converted(out)


@pytest.fixture(scope="module")
def from_parquet(tmp_path_factory: pytest.TempPathFactory, rows: Rows) -> Converted:
    folder = tmp_path_factory.mktemp("parquet")
    convert_kuairand(write_parquet_layout(folder / "source", rows), folder / "log")
    return Converted(folder / "log")


@pytest.fixture(params=["from_csv", "from_parquet"])
def converted(request: pytest.FixtureRequest) -> Converted:
    return request.getfixturevalue(request.param)


def shown_rows(rows: Rows, *, random_too: bool) -> list[dict[str, int]]:
    """What is converted of the made rows, in plain Python; the published layout keeps random exposures apart."""
    listed = [{name: int(values[at]) for name, values in rows.items()} | {"at": at} for at in range(ROWS)]
    return [row for row in listed if row["date"] >= 20220425 and (random_too or row["at"] % 20)]


def test_split_is_fixed_on_all_rows_and_late_histories_go_afterwards(from_parquet: Converted, rows: Rows) -> None:
    shown = shown_rows(rows, random_too=True)
    times = np.array([row["time_ms"] for row in shown])
    cut = np.quantile(times, 0.75)
    until = datetime.fromisoformat(from_parquet.split["train_until"])
    counts = from_parquet.split["counts"]
    assert counts["test"] == (times > cut).sum()
    assert until.timestamp() * 1000 - cut <= 1
    assert counts["dropped"] == 2  # the first two impressions of the user whose history ends with the second
    assert counts["train"] + counts["validation"] + counts["test"] == counts["impressions"] == len(shown) - 2
    assert len(from_parquet.winners) == counts["impressions"]
    assert counts["validation"] == pytest.approx(0.15 * (times <= cut).sum(), abs=2)


def test_every_impression_is_a_winner_with_its_labels(from_csv: Converted, rows: Rows) -> None:
    expected = {}
    for row in shown_rows(rows, random_too=False):
        engaged = any(row[name] for name in ("is_like", "is_follow", "is_comment", "is_forward", "is_profile_enter"))
        key = f"{row['time_ms']}-{row['user_id']}", str(row["video_id"])
        expected[key] = row["is_click"], row["is_click"] * engaged
    found = {(row["request_id"], row["ad_id"]): row for row in from_csv.winners}
    assert {key: (row["label_click"], row["label_conv_engage"]) for key, row in found.items()} == expected


def test_a_request_is_a_user_and_a_moment(converted: Converted, rows: Rows) -> None:
    twice = f"{rows['time_ms'][-1]}-{rows['user_id'][-1]}"
    assert [row["ad_id"] for row in converted.winners if row["request_id"] == twice] == ["1000", "1001"]
    ids = converted.tables["requests"]["request_id"].to_pylist()
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)
    in_pairs = list(dict.fromkeys(row["request_id"] for row in converted.candidates))
    assert in_pairs == ids, "candidates come sorted by request"


def test_eligible_videos_are_unshown_unlabelled_and_of_the_day(converted: Converted) -> None:
    eligible = [row for row in converted.candidates if row["stage"] == "eligible"]
    pairs = {(row["request_id"], row["ad_id"]) for row in converted.candidates}
    assert len(pairs) == len(converted.candidates)
    assert all(row["label_click"] is None and row["label_conv_engage"] is None for row in eligible)
    assert 3 < len(eligible) / len(converted.requests) <= 10
    days: dict[int, set[str]] = {}
    for row in converted.winners:
        days.setdefault(_day(converted.requests[row["request_id"]]), set()).add(row["ad_id"])
    assert all(row["ad_id"] in days[_day(converted.requests[row["request_id"]])] for row in eligible)


def test_full_requests_of_the_test_part_log_the_videos_most_shown_that_day(csv_folder: Path, tmp_path: Path) -> None:
    plain, full = tmp_path / "plain", tmp_path / "full"
    convert_kuairand(csv_folder, plain)
    convert_kuairand(csv_folder, full, full_requests=7, full_pool=12)
    before, after = Converted(plain), Converted(full)
    shown: dict[int, dict[str, int]] = {}
    for row in after.winners:
        counts = shown.setdefault(_day(after.requests[row["request_id"]]), {})
        counts[row["ad_id"]] = counts.get(row["ad_id"], 0) + 1
    eligible = _eligible(after)
    changed = [key for key, found in eligible.items() if found != _eligible(before).get(key)]
    assert 0 < len(changed) <= 7
    until = datetime.fromisoformat(after.split["train_until"])
    for key in changed:
        assert after.requests[key]["event_time"] >= until
        winners = {row["ad_id"] for row in after.winners if row["request_id"] == key}
        counts = shown[_day(after.requests[key])]
        ranked = sorted(counts, key=lambda ad: (-counts[ad], int(ad)))[:12]
        assert eligible[key] == set(ranked) - winners


def _eligible(log: Converted) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in log.candidates:
        if row["stage"] == "eligible":
            found.setdefault(row["request_id"], set()).add(row["ad_id"])
    return found


def test_more_full_requests_than_the_test_part_has_are_refused(csv_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="full requests: expected at most the"):
        convert_kuairand(csv_folder, tmp_path / "out", full_requests=10_000)


def test_statistics_equal_plain_counts_of_strictly_earlier_days(converted: Converted) -> None:
    until = datetime.fromisoformat(converted.split["train_until"])
    facts = [
        (_day(request), request["event_time"], request["user_id"], row["ad_id"], request["tab"], row["label_click"])
        for row in converted.winners
        for request in [converted.requests[row["request_id"]]]
    ]
    training = [fact for fact in facts if fact[1] < until]
    frozen = max(fact[0] for fact in training) + 1
    for fact, row in list(zip(facts, converted.winners, strict=True))[::7]:
        past = [other for other in training if other[0] < min(fact[0], frozen)]
        request, ad = converted.requests[row["request_id"]], converted.ad_at(row["ad_id"], fact[1])
        for found, prior, same in (
            (request["user_ctr"], 5, [other for other in past if other[2] == fact[2]]),
            (request["user_tab_ctr"], 3, [other for other in past if other[2] == fact[2] and other[4] == fact[4]]),
            (ad["video_ctr"], 20, [other for other in past if other[3] == fact[3]]),
            (row["user_video_ctr"], 1, [other for other in past if other[2:4] == fact[2:4]]),
        ):
            overall = sum(other[5] for other in past) / len(past) if past else None
            expected = (
                None if overall is None else (sum(other[5] for other in same) + prior * overall) / (len(same) + prior)
            )
            assert found == (None if expected is None else pytest.approx(expected, rel=1e-5))


@pytest.mark.parametrize("day", [20220428, 20220502, 20220508])
def test_outcomes_change_no_feature_of_their_own_day(tmp_path: Path, rows: Rows, day: int) -> None:
    """All outcomes of a day turned round: what was known up to that day stays, and for ever where it is a test day."""
    flipped = {name: values.copy() for name, values in rows.items()}
    of_day = rows["date"] == day
    for name in OUTCOMES:
        flipped[name][of_day] = 1 - flipped[name][of_day]
    flipped["play_time_ms"][of_day] = 5000 - flipped["play_time_ms"][of_day]
    logs = []
    for name, made in (("a", rows), ("b", flipped)):
        convert_kuairand(write_parquet_layout(tmp_path / f"source_{name}", made), tmp_path / name)
        logs.append(Converted(tmp_path / name))
    start = datetime.strptime(f"{day}+0800", "%Y%m%d%z")
    is_test_day = start > datetime.fromisoformat(logs[0].split["train_until"])
    end = datetime.max.replace(tzinfo=UTC) if is_test_day else start.replace(hour=23, minute=59, second=59)
    left, right = [_features(log, end) for log in logs]
    assert left == right
    assert len(left[0]) > 50
    if not is_test_day:
        assert logs[0].tables["ads"] != logs[1].tables["ads"], "later days do know of it"


def test_histories_are_the_strictly_earlier_rows_oldest_first(from_csv: Converted, rows: Rows) -> None:
    plain = [{name: int(values[at]) for name, values in rows.items()} for at in range(ROWS)]
    kinds: dict[str, Callable[[dict[str, int]], bool]] = {
        "watch": lambda row: True,
        "like": lambda row: row["is_like"] == 1,
        "long_watch": lambda row: row["long_view"] == 1,
    }
    items = {row["video_id"]: row for row in made_items().to_pylist()}
    for request in list(from_csv.requests.values())[::11]:
        now = int(request["event_time"].timestamp() * 1000)
        earlier = [row for row in plain if row["user_id"] == request["user_id"] and row["time_ms"] < now]
        earlier = [row for row in earlier if row["play_time_ms"] > 0]
        assert request["history_length"] == len(earlier)
        for kind, wanted in kinds.items():
            events = [row for row in earlier if wanted(row)][-50:]
            assert request[f"{kind}.video_id"] == [row["video_id"] for row in events]
            assert [_ms(time) for time in request[f"{kind}.time"]] == [row["time_ms"] for row in events]
            tags = [items[row["video_id"]]["tag"].split(",")[0] for row in events]
            assert request[f"{kind}.tag"] == [None if tag == "unknown" else tag for tag in tags]
            assert request[f"{kind}.author_id"] == [items[row["video_id"]]["author_id"] for row in events]


def test_given_histories_have_no_times(from_parquet: Converted) -> None:
    names = from_parquet.tables["requests"].schema.names
    assert not [name for name in names if name.endswith(".time")]
    for request in from_parquet.requests.values():
        known = (request["user_id"] - 100) % 2 == 0
        assert request["watch.video_id"] == ([1000, 1003, 1003] if known else [])
        assert (request["history_age_hours"] is None) == (not known)
        assert request["history_length"] == (70 if known else 0)


def test_pairs_count_what_the_history_shares(from_csv: Converted) -> None:
    items = {str(row["video_id"]): row for row in made_items().to_pylist()}
    for row in from_csv.candidates[::37]:
        request, item = from_csv.requests[row["request_id"]], items[row["ad_id"]]
        watched = [items[str(video)] for video in request["watch.video_id"]]
        first_tag = [other["tag"].split(",")[0] for other in watched]
        assert row["watch_same_video"] == sum(other["video_id"] == item["video_id"] for other in watched)
        assert row["watch_same_author"] == sum(other["author_id"] == item["author_id"] for other in watched)
        assert row["watch_same_tag"] == first_tag.count(item["tag"].split(",")[0])


def test_unknown_values_become_null(converted: Converted) -> None:
    streamer = {row["user_id"]: row["is_live_streamer"] for row in converted.requests.values()}
    assert streamer[100] is None
    assert streamer[101] == 1
    first = {ad_id: found[0] for ad_id, found in converted.ads.items()}
    assert first["1001"]["tag"] == ["39", "68"]
    assert first["1002"]["tag"] is None
    assert first["1000"]["music_id"] is None
    assert first["1001"]["music_id"] == 1
    assert first["1003"]["music_type"] is None
    assert first["1005"]["duration"] is None


def test_outcomes_are_no_features(converted: Converted) -> None:
    outcomes = {*OUTCOMES, "is_hate", "play_time_ms", "profile_stay_time", "comment_stay_time", "duration_ms"}
    for table in converted.tables.values():
        assert not outcomes & set(table.schema.names)


def test_ads_change_at_local_midnight_at_most_once_a_day(converted: Converted) -> None:
    times = utc_micros(converted.tables["ads"]["valid_from"], column="valid_from", source="ads")
    assert not ((times // 1000 + ZONE_MS) % DAY_MS).any()
    assert set(converted.ads) == {str(1000 + number) for number in range(VIDEOS)}
    assert max(len(found) for found in converted.ads.values()) > 5
    for found in converted.ads.values():
        for before, after in itertools.pairwise(found):
            assert {**before, "valid_from": None} != {**after, "valid_from": None}


@pytest.mark.parametrize("name", ["kuairand_heavy", "kuairand_towers"])
def test_the_log_fits_its_schemas(converted: Converted, tmp_path: Path, name: str) -> None:
    until = datetime.fromisoformat(converted.split["validate_from"])
    schema = fit_log(named_schema(name), converted.paths, until=until)
    schema.require_fitted()
    assert not validate_log(converted.paths, schema).faults
    examples = encode_log(schema, converted.paths, tmp_path, teacher=False, labels=True)
    assert len(examples) == converted.split["counts"]["impressions"]
    assert (examples.pair is not None) == (name == "kuairand_heavy")
    assert examples.summary.dropped["no ad row as of the request"] == 0


def test_the_towers_read_all_that_the_heavy_ranker_reads_but_pairs() -> None:
    heavy, towers = named_schema("kuairand_heavy"), named_schema("kuairand_towers")
    own = {name: feature for name, feature in heavy.features.items() if feature.side != "pair"}
    assert towers.features == own
    assert (towers.tables, towers.tasks) == (heavy.tables, heavy.tasks)


def test_times_of_histories_can_be_encoded_as_ages(from_csv: Converted) -> None:
    fields = {"time": SequenceField(kind="age"), "video_id": SequenceField(kind="categorical", table="video")}
    schema = FeatureSchema(
        tasks=("click",),
        objectives={"click": "click"},
        tables={"video": Table(dim=4, buckets=64)},
        features={"watch": Feature(side="query", kind="sequence", max_length=50, fields=fields)},
    )
    requests = from_csv.tables["requests"]
    times = utc_micros(requests["event_time"], column="event_time", source="requests")
    batch = Encoder(schema, "query").encode(requests, event_time=times)
    assert not batch.invalid.any()


def test_the_same_seed_gives_the_same_log_and_another_one_other_eligible_videos(
    csv_folder: Path, from_csv: Converted, tmp_path: Path
) -> None:
    convert_kuairand(csv_folder, tmp_path / "same")
    convert_kuairand(csv_folder, tmp_path / "other", seed=1)
    same, other = Converted(tmp_path / "same"), Converted(tmp_path / "other")
    assert same.tables == from_csv.tables
    assert other.tables["requests"] == from_csv.tables["requests"]
    assert other.candidates != from_csv.candidates
    assert other.winners == from_csv.winners


def test_a_target_that_exists_is_refused(csv_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="exists already"):
        convert_kuairand(csv_folder, tmp_path)


def test_a_folder_without_either_layout_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"expected a folder with kuairand_impressions\.parquet"):
        convert_kuairand(tmp_path, tmp_path / "log")


def test_a_missing_file_and_a_missing_column_are_named(tmp_path: Path, rows: Rows) -> None:
    folder = write_csv_layout(tmp_path / "source", rows)
    users = folder / CSV_USERS
    users.write_text(users.read_text().replace("fans_user_num", "other", 1))
    with pytest.raises(LogError, match=r"user_features_pure\.csv.*fans_user_num"):
        convert_kuairand(folder, tmp_path / "log")
    (folder / CSV_RANDOM).unlink()
    with pytest.raises(LogError, match=r"log_random_4_22_to_5_08_pure\.csv: no such file"):
        convert_kuairand(folder, tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_a_video_that_no_table_describes_is_refused_and_nothing_is_left(tmp_path: Path, rows: Rows) -> None:
    wrong = {**rows, "video_id": np.where(np.arange(ROWS) == ROWS - 1, 7, rows["video_id"])}
    folder = write_csv_layout(tmp_path / "source", wrong)
    with pytest.raises(LogError, match="column video_id: 7 has no row"):
        convert_kuairand(folder, tmp_path / "log")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(("column", "value", "expected"), [("tab", 32, r"0\.\.31"), ("hourmin", 2400, r"0\.\.2399")])
def test_a_tab_or_an_hour_out_of_range_is_refused(
    tmp_path: Path, rows: Rows, column: str, value: int, expected: str
) -> None:
    wrong = {**rows, column: np.where(np.arange(ROWS) == ROWS - 1, value, rows[column])}
    folder = write_parquet_layout(tmp_path / "source", wrong)
    with pytest.raises(LogError, match=f"column {column}: expected {expected}, got {value}"):
        convert_kuairand(folder, tmp_path / "log")


def _day(request: dict[str, Any]) -> int:
    return (_ms(request["event_time"]) + ZONE_MS) // DAY_MS


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _features(log: Converted, end: datetime) -> list[pa.Table]:
    """What was known before ``end``: requests, ads, and pairs without their labels."""
    limit = pa.scalar(min(end, datetime(2100, 1, 1, tzinfo=UTC)), pa.timestamp("us", "UTC"))
    requests = log.tables["requests"].filter(pc.less(log.tables["requests"]["event_time"], limit))
    ads = log.tables["ads"].filter(pc.less(log.tables["ads"]["valid_from"], limit))
    known = pc.is_in(log.tables["candidates"]["request_id"], requests["request_id"].combine_chunks())
    pairs = log.tables["candidates"].filter(known).drop_columns(["label_click", "label_conv_engage"])
    return [pairs, requests, ads]
