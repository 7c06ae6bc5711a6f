"""Counts of the past against plain loops."""

import numpy as np
import pyarrow as pa
import pytest

from adlogs.kuairand_rows import Catalogue, Impressions
from adlogs.kuairand_statistics import COUNTS, PastCounts, PastStatistics
from contracts.errors import LogError


def made_catalogue() -> Catalogue:
    return Catalogue(
        ids=np.arange(6),
        author=np.array([0, 0, 1, 1, 2, 2]),
        tag=np.array([0, 1, 0, 1, 0, 1]),
        music=np.arange(6),
        tag_names=("1", "unknown"),
        num_authors=3,
        table=pa.table({}),
    )


def made_impressions(rows: int = 400, seed: int = 0) -> Impressions:
    random = np.random.default_rng(seed)
    day = np.sort(random.integers(100, 106, rows))
    click = random.integers(0, 2, rows)
    return Impressions(
        time_ms=day * 1000,
        day=day,
        hour=random.integers(0, 24, rows),
        tab=random.integers(0, 4, rows),
        user=random.integers(0, 5, rows),
        video=random.integers(0, 6, rows),
        click=click,
        engage=click * random.integers(0, 2, rows),
        long_view=random.integers(0, 2, rows),
    )


def test_counts_equal_a_plain_loop() -> None:
    random = np.random.default_rng(1)
    keys, days = random.integers(0, 9, 300), random.integers(0, 5, 300)
    outcomes = random.integers(0, 2, (300, 2))
    asked_keys, asked_days = random.integers(0, 12, 80), random.integers(0, 6, 80)
    found = PastCounts(keys, days, outcomes, num_days=6).before(asked_keys, asked_days)
    for counts, key, day in zip(found, asked_keys, asked_days, strict=True):
        past = (keys == key) & (days < day)
        assert counts.tolist() == [past.sum(), *outcomes[past].sum(axis=0)]


@pytest.mark.parametrize(
    ("name", "prior_trials"),
    [("author", 20), ("user_author", 2), ("user_tag", 3), ("video_tab", 10), ("tab_hour", 20)],
)
def test_rates_are_smoothed_towards_the_overall_rate_of_the_past(name: str, prior_trials: float) -> None:
    rows, catalogue = made_impressions(), made_catalogue()
    statistics = PastStatistics(rows, catalogue)
    parts = {"author": catalogue.author[rows.video], "tag": catalogue.tag[rows.video], **vars(rows)}
    who = {"user": rows.user, "video": rows.video, "tab": rows.tab, "hour": rows.hour}
    found = statistics.columns((name,), rows.day, **who)
    outcomes = (rows.click, rows.engage, rows.long_view)
    for at in range(0, len(rows), 13):
        past = rows.day < rows.day[at]
        same = past & np.logical_and.reduce([parts[part] == parts[part][at] for part in name.split("_")])
        counts = [found[f"{name}_{suffix}"][at] for suffix in COUNTS]
        if not past.any():
            assert np.isnan(counts).all()
            continue
        rates = [
            (values[same].sum() + prior_trials * values[past].mean()) / (same.sum() + prior_trials)
            for values in outcomes
        ]
        assert counts == pytest.approx([same.sum(), *rates], rel=1e-6)


def test_days_after_the_last_snapshot_read_it() -> None:
    statistics = PastStatistics(made_impressions(), made_catalogue())
    assert (statistics.first_day, statistics.last_day) == (100, 106)
    assert statistics.snapshot(np.array([100, 105, 106, 107, 140])).tolist() == [100, 105, 106, 106, 106]


def test_no_impression_before_the_split_is_refused() -> None:
    rows = made_impressions()
    with pytest.raises(LogError, match="no impression before the split"):
        PastStatistics(rows.take(rows.day < 0), made_catalogue())
