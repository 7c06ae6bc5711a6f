"""The as-of join of requests and ads equals its plain definition, and what makes it ambiguous is refused."""

import numpy as np
import pyarrow as pa
import pytest

from contracts.errors import LogError
from contracts.timeline import AdsTimeline


def ads(ids: list[str], valid_from: list[int]) -> pa.Table:
    return pa.table({"ad_id": ids, "valid_from": pa.array(valid_from, pa.timestamp("us", tz="UTC"))})


def plain_row_at(ids: list[str], valid_from: list[int], ad_id: str, time: int) -> int:
    rows = [(valid_from[row], row) for row in range(len(ids)) if ids[row] == ad_id and valid_from[row] <= time]
    return max(rows)[1] if rows else -1


def test_the_as_of_join_equals_its_definition() -> None:
    rng = np.random.default_rng(0)
    pairs = sorted({(f"ad-{rng.integers(20)}", int(rng.integers(100))) for _ in range(200)})
    order = rng.permutation(len(pairs))
    ids, valid_from = [pairs[i][0] for i in order], [pairs[i][1] for i in order]
    timeline = AdsTimeline(ads(ids, valid_from))
    asked = [f"ad-{i}" for i in rng.integers(0, 25, 500)]
    moments = rng.integers(-5, 110, 500)
    expected = [plain_row_at(ids, valid_from, ad_id, time) for ad_id, time in zip(asked, moments, strict=True)]
    assert timeline.rows_at(pa.array(asked).dictionary_encode(), moments).tolist() == expected
    assert -1 in expected


def test_an_empty_timeline_knows_no_ad() -> None:
    timeline = AdsTimeline(
        ads([], []).cast(pa.schema([("ad_id", pa.string()), ("valid_from", pa.timestamp("us", "UTC"))]))
    )
    assert timeline.rows_at(pa.array(["a"]), np.array([1])).tolist() == [-1]
    full = AdsTimeline(ads(["a"], [1]))
    assert full.rows_at(pa.array([], pa.string()), np.zeros(0, np.int64)).tolist() == []


def test_ties_and_missing_ids_in_ads_are_refused() -> None:
    with pytest.raises(LogError, match=r"ads: 1 rows repeat the ad_id and valid_from of .* such as ad \['b'\]"):
        AdsTimeline(ads(["a", "b", "b"], [1, 2, 2]))
    with pytest.raises(LogError, match="ads: column ad_id is missing in row 1"):
        AdsTimeline(pa.table({"ad_id": ["a", None], "valid_from": pa.array([1, 2], pa.timestamp("us", "UTC"))}))
