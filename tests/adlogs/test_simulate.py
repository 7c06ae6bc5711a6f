import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import adlogs.simulate
from adlogs import presets
from adlogs.fit import fit_log, named_schema
from adlogs.simulate import SimulationSummary, simulate
from adlogs.validate import validate_log
from contracts.encoding import Encoder
from contracts.errors import ConfigError, InputError, LogError
from contracts.metrics import auc, log_loss
from contracts.records import LogPaths, open_dataset, utc_micros
from contracts.timeline import AdsTimeline

HOUR, DAY = 3_600_000_000, 86_400_000_000
CONFIG = presets.tiny()


@pytest.fixture(scope="module")
def tables(tiny: tuple[Path, SimulationSummary]) -> dict[str, pa.Table]:
    return {name: open_dataset(tiny[0] / name).to_table() for name in ("requests", "candidates", "ads", "truth")}


@pytest.fixture(scope="module")
def pair_times(tables: dict[str, pa.Table]) -> np.ndarray:
    """Event time of each candidate row, microseconds."""
    requests, candidates = tables["requests"], tables["candidates"]
    row = pc.index_in(candidates["request_id"], requests["request_id"]).to_numpy()
    return utc_micros(requests["event_time"], column="event_time", source="requests")[row]


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Float values, NaN for null."""
    return column.cast(pa.float64()).fill_null(float("nan")).to_numpy()


def test_the_same_seed_gives_the_same_log(
    tiny: tuple[Path, SimulationSummary], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    assert simulate(tmp_path / "again", "tiny", CONFIG.seed) == tiny[1]
    for name, table in tables.items():
        assert open_dataset(tmp_path / "again" / name).to_table().equals(table)
    other = simulate(tmp_path / "other", "tiny", CONFIG.seed + 1)
    assert other.truth_click_log_loss != tiny[1].truth_click_log_loss


@pytest.mark.parametrize("task", ["click", "conversion"])
def test_log_loss_of_the_truth_is_as_recorded(tables: dict[str, pa.Table], task: str) -> None:
    assert tables["truth"].select(["request_id", "ad_id"]).equals(tables["candidates"].select(["request_id", "ad_id"]))
    label, truth = numbers(tables["candidates"][f"label_{task}"]), numbers(tables["truth"][f"true_{task}"])
    known = ~np.isnan(label)
    # Sums of products may round differently on another processor and tip single choices of the policy.
    assert log_loss(label[known], truth[known]) == pytest.approx(presets.TRUTH_LOG_LOSS["tiny"][task], abs=0.004)
    assert auc(label[known], truth[known]) > 0.7


def test_every_preset_has_its_recorded_truth() -> None:
    assert presets.TRUTH_LOG_LOSS.keys() == presets.PRESETS.keys()


def test_ranking_by_bid_alone_misses_most_of_the_best(tiny: tuple[Path, SimulationSummary]) -> None:
    assert tiny[1].bid_recall < 0.5


def test_the_log_is_valid_for_each_of_its_schemas(tiny: tuple[Path, SimulationSummary]) -> None:
    for name in ("simulated_heavy", "simulated_standard", "simulated_shopping"):
        log = LogPaths.under(tiny[0])
        fitted = fit_log(named_schema(name), log, until=None)
        validate_log(log, fitted).require_valid()


def test_a_log_of_before_landing_pages_were_judged_is_refused_with_a_way_out(
    tiny: tuple[Path, SimulationSummary], tmp_path: Path
) -> None:
    ads = open_dataset(tiny[0] / "ads").to_table().drop_columns(["landing_score"])
    pq.write_table(ads, tmp_path / "ads.parquet")
    log = replace(LogPaths.under(tiny[0]), ads=str(tmp_path / "ads.parquet"))
    for name in ("simulated_heavy", "simulated_standard", "simulated_shopping"):
        with pytest.raises(LogError, match="column 'landing_score' is missing, .* write the log anew with it, or take"):
            fit_log(named_schema(name), log, until=None)


def test_towers_read_what_the_heavy_ranker_reads_but_for_pairs_and_other_scenarios() -> None:
    heavy = named_schema("simulated_heavy").features
    for name, lacking in (("standard", {"price", "brand"}), ("shopping", set())):
        towers = named_schema(f"simulated_{name}").features
        assert heavy.keys() - towers.keys() == {"user_advertiser_clicks", "scenario"} | lacking
        assert all(heavy[feature] == towers[feature] for feature in towers)


def test_whole_pools_are_logged_on_the_last_day(tables: dict[str, pa.Table]) -> None:
    candidates, requests = tables["candidates"], tables["requests"]
    counts = candidates.group_by("request_id").aggregate([("ad_id", "count_distinct")])
    full = counts.filter(pc.equal(counts["ad_id_count_distinct"], CONFIG.full_pool))["request_id"]
    chosen = requests.filter(pc.is_in(requests["request_id"], full))
    assert chosen["scenario"].value_counts().to_pylist() == [
        {"values": scenario, "counts": CONFIG.full_requests} for scenario in chosen["scenario"].unique().to_pylist()
    ]
    last = pc.max(requests["event_time"]).as_py().date()
    assert {time.date() for time in chosen["event_time"].to_pylist()} == {last}
    others = CONFIG.num_winners + CONFIG.logged_candidates + CONFIG.logged_eligible
    assert set(counts["ad_id_count_distinct"].to_pylist()) == {CONFIG.full_pool, others}


def test_labels_are_known_only_of_shown_ads_and_conversions_only_when_mature(
    tables: dict[str, pa.Table], pair_times: np.ndarray
) -> None:
    candidates = tables["candidates"]
    shown = np.array(candidates["stage"].to_pylist()) == "winner"
    click, conversion = numbers(candidates["label_click"]), numbers(candidates["label_conversion"])
    as_of = utc_micros(tables["requests"]["labels_as_of"], column="labels_as_of", source="requests").max()
    in_time = pair_times + 36 * HOUR <= as_of
    assert np.array_equal(~np.isnan(click), shown)
    assert np.array_equal(~np.isnan(conversion), shown & in_time)
    assert (shown & ~in_time).any()
    assert (conversion[shown & in_time] <= click[shown & in_time]).all()
    assert np.array_equal(~np.isnan(numbers(candidates["position"])), shown)


def test_candidates_stand_in_the_order_of_their_requests(tables: dict[str, pa.Table]) -> None:
    requests = tables["requests"]["request_id"].to_pylist()
    assert requests == sorted(requests)
    row = pc.index_in(tables["candidates"]["request_id"], tables["requests"]["request_id"]).to_numpy()
    assert (np.diff(row) >= 0).all()
    assert tables["requests"]["event_time"].to_pylist() == sorted(tables["requests"]["event_time"].to_pylist())


def test_every_candidate_is_an_active_ad_of_the_requests_scenario(
    tables: dict[str, pa.Table], pair_times: np.ndarray
) -> None:
    ads, candidates = tables["ads"], tables["candidates"]
    row = AdsTimeline(ads).rows_at(candidates["ad_id"], pair_times)
    assert (row >= 0).all()
    joined = ads.take(pa.array(row))
    assert joined["status"].unique().to_pylist() == ["active"]
    assert joined["objective"].equals(candidates["objective"])
    request = pc.index_in(candidates["request_id"], tables["requests"]["request_id"])
    assert joined["scenario"].equals(tables["requests"]["scenario"].take(request))


def test_ads_come_and_go_and_change_through_the_days(tables: dict[str, pa.Table]) -> None:
    ads = tables["ads"]
    age, time = ads["ad_age_days"].to_numpy(), utc_micros(ads["valid_from"], column="valid_from", source="ads")
    days = np.unique(time // DAY)
    assert len(days) == CONFIG.num_days
    for day in days:
        assert (age[time // DAY == day] == 0).any()
    assert (time % DAY != 0).any()
    assert "paused" in ads["status"].to_pylist()
    cold = age == 0
    assert (ads["past_impressions"].to_numpy()[cold] == 0).all()
    assert np.isnan(numbers(ads["past_ctr"])[cold]).all()
    bids = ads.group_by("ad_id").aggregate([("bid", "count_distinct")])["bid_count_distinct"].to_numpy()
    assert bids.max() > 1


def test_past_impressions_count_strictly_earlier_days(tables: dict[str, pa.Table], pair_times: np.ndarray) -> None:
    ads, candidates = tables["ads"], tables["candidates"]
    midnights = sorted(time for time in set(ads["valid_from"].to_pylist()) if time.hour == 0)
    shown = np.array(candidates["stage"].to_pylist()) == "winner"
    for yesterday, today in itertools.pairwise(midnights):
        before, after = (
            dict(zip(rows["ad_id"].to_pylist(), rows["past_impressions"].to_pylist(), strict=True))
            for rows in (ads.filter(pc.equal(ads["valid_from"], time)) for time in (yesterday, today))
        )
        of_day = shown & (pair_times // DAY == int(yesterday.timestamp() * 1e6) // DAY)
        # Of ordinary requests all shown ads are logged, of full ones too: counts can be redone.
        counted = dict.fromkeys(before, 0)
        for ad in candidates["ad_id"].filter(pa.array(of_day)).to_pylist():
            if ad in counted:
                counted[ad] += 1
        both = before.keys() & after.keys()
        assert len(both) > 100
        assert [after[ad] for ad in both] == pytest.approx([0.75 * before[ad] + counted[ad] for ad in both], rel=1e-5)


def test_histories_are_aligned_bounded_and_from_before_the_request(tables: dict[str, pa.Table]) -> None:
    requests = tables["requests"]
    event_times = requests["event_time"].to_pylist()
    for group in ("recent_clicks", "recent_conversions"):
        fields = [requests[f"{group}.{field}"].to_pylist() for field in ("ad_id", "category", "advertiser_id", "time")]
        for event_time, *events in zip(event_times, *fields, strict=True):
            assert len({len(values) for values in events}) == 1
            times = events[-1]
            assert len(times) <= 50
            assert times == sorted(times)
            assert not times or times[-1] < event_time
    clicks = requests["recent_clicks.ad_id"].to_pylist()
    assert np.mean([len(events) for events in clicks]) > 5


def test_values_are_missing_and_texts_are_not_all_ascii(tables: dict[str, pa.Table]) -> None:
    requests, ads = tables["requests"], tables["ads"]
    for column in ("country", "age_band", "income_band", "interests", "user_ctr"):
        assert 0 < requests[column].null_count < len(requests)
    for column in ("price", "brand", "image", "past_ctr"):
        assert 0 < ads[column].null_count < len(ads)
    for column in (requests["language"], ads["category"], ads["brand"], ads["ad_id"]):
        assert any(text is not None and not text.isascii() for text in column.unique().to_pylist())


def test_encoded_log_reads_the_latent_features(tiny: tuple[Path, SimulationSummary]) -> None:
    """Profiles and images come through the encoder with a spread that a model can learn from."""
    log = LogPaths.under(tiny[0])
    schema = fit_log(named_schema("simulated_heavy"), log, until=None)
    encoder = Encoder(schema, "ad")
    encoded = encoder.encode(open_dataset(log.ads).to_table()).encoded
    image = next(column for column in encoder.layout.dense if column.name == "image")
    spread = encoded.floats[:, image.start : image.start + image.width].std()
    assert 0.8 < spread < 1.2


def test_what_exists_is_not_overwritten(tiny: tuple[Path, SimulationSummary]) -> None:
    with pytest.raises(InputError, match=r"tiny: .*exists"):
        simulate(tiny[0], "tiny")


def test_a_failed_simulation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(adlogs.simulate.pq, "write_table", full_disk)
    with pytest.raises(OSError, match="No space left"):
        simulate(tmp_path / "log", "tiny")
    assert list(tmp_path.iterdir()) == []


def test_unknown_preset() -> None:
    with pytest.raises(ConfigError, match=r"preset: expected one of tiny, demo, million, large, got 'huge'"):
        presets.load_preset("huge")
