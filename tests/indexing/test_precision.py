"""int8 vectors equal their plain definition; what a precision loses is measured, and too much stops the build."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from contracts.bundle import open_bundle
from contracts.errors import ArtifactError
from indexing import precision
from indexing.embed import AdEmbedder
from indexing.precision import (
    CHECKED_ADS,
    ENOUGH_ADS,
    NO_LOSS,
    TOP,
    PrecisionLimit,
    PrecisionLoss,
    num_to_check,
    precision_loss,
    spread_rows,
)
from towers.serving import TwoTowerServing, quantise_vectors, score, split_pin_embedding


def plain_int8(vector: np.ndarray) -> tuple[list[int], float]:
    """One head of one ad."""
    scale = max(abs(float(value)) for value in vector) / 127
    return [round(float(value) / scale) if scale else 0 for value in vector], scale


def test_int8_vectors_equal_the_plain_definition() -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.standard_normal((50, 12)) * 10.0 ** rng.integers(-6, 6, (50, 1))).astype(np.float32)
    vectors[3] = 0
    integers, scales = quantise_vectors(vectors, num_heads=3)
    assert integers.dtype == np.int8
    assert scales.dtype == np.float32
    for ad in range(50):
        for head in range(3):
            here = slice(4 * head, 4 * head + 4)
            expected, scale = plain_int8(vectors[ad, here])
            assert np.abs(integers[ad, here] - np.array(expected)).max() <= 0
            assert scales[ad, head] == pytest.approx(scale, rel=1e-6)
            error = np.abs(integers[ad, here] * scales[ad, head] - vectors[ad, here]).max()
            assert error <= scale / 2 * 1.001


def test_tiny_vectors_become_zero_and_never_overflow() -> None:
    vectors = np.full((1, 4), 1e-42, np.float32)
    integers, scales = quantise_vectors(vectors, num_heads=2)
    assert integers.tolist() == [[0, 0, 0, 0]]
    assert scales.tolist() == [[0, 0]]


def test_scores_of_int8_vectors_equal_those_of_what_they_stand_for() -> None:
    rng = np.random.default_rng(1)
    query = rng.standard_normal((2, 8)).astype(np.float32)
    bias = rng.standard_normal((30, 2)).astype(np.float32)
    integers, scales = quantise_vectors(rng.standard_normal((30, 12)).astype(np.float32), num_heads=2)
    stand_for = (integers.reshape(30, 2, 6) * scales[:, :, None]).reshape(30, 12)
    np.testing.assert_allclose(
        score(query, integers, bias, scales), score(query, stand_for, bias), rtol=1e-5, atol=1e-5
    )


def test_the_loss_equals_loops_over_requests_and_heads() -> None:
    rng = np.random.default_rng(2)
    exact = rng.random((5, 16, 2))
    stored = np.clip(exact + rng.normal(0, 0.05, exact.shape), 0, 1)
    loss = precision_loss(exact, stored)
    hits = []
    for request in range(5):
        for head in range(2):
            best = set(np.argsort(-exact[request, :, head])[:TOP].tolist())
            hits += [ad in best for ad in np.argsort(-stored[request, :, head])[:TOP].tolist()]
    assert loss.top_overlap == pytest.approx(np.mean(hits))
    assert loss.error == np.abs(exact - stored).max()
    assert loss.ads == 16
    assert precision_loss(exact, exact) == PrecisionLoss(16, 0.0, pytest.approx(1.0), 1.0)
    assert precision_loss(exact[:, :0], exact[:, :0]) == NO_LOSS


def test_more_ads_than_a_group_are_compared_in_groups_spread_over_them() -> None:
    rng = np.random.default_rng(3)
    exact = rng.random((5, 40, 2))
    stored = np.clip(exact + rng.normal(0, 0.05, exact.shape), 0, 1)
    groups = [precision_loss(exact[:, first::3], stored[:, first::3]) for first in range(3)]
    assert [group.ads for group in groups] == [14, 13, 13]
    loss = precision_loss(exact, stored)
    assert (loss.ads, loss.error) == (40, np.abs(exact - stored).max())
    for name in ("rank_correlation", "top_overlap"):
        assert getattr(loss, name) == pytest.approx(sum(getattr(one, name) * one.ads for one in groups) / 40)


def test_a_probability_that_is_no_number_is_an_error_in_any_group() -> None:
    exact = np.random.default_rng(4).random((2, 40, 1))
    for ad in (0, 1, 39):
        stored = exact.copy()
        stored[1, ad] = np.nan
        with pytest.raises(ArtifactError, match="a probability is nan"):
            judge(precision_loss(exact, stored), "fp16")


def test_so_many_ads_are_compared_at_the_beginning_that_the_order_is_judged() -> None:
    for size in (1, 16, 100, 300, 16_384):
        compared, position = 0, 0
        while position < ENOUGH_ADS:
            compared += min(num_to_check(position), size)
            position += size
        assert ENOUGH_ADS <= compared < ENOUGH_ADS + CHECKED_ADS
        assert num_to_check(position) == CHECKED_ADS


def test_ads_of_equal_probability_are_equally_good() -> None:
    exact = np.full((1, 10, 1), 0.25)
    assert precision_loss(exact, exact + np.linspace(0, 1e-9, 10)[None, :, None]).top_overlap == 1.0


def test_losses_merge_to_the_larger_error_and_the_means() -> None:
    merged = PrecisionLoss(10, 0.1, 0.99, 1.0).merge(PrecisionLoss(30, 0.2, 0.999, 0.8)).merge(NO_LOSS)
    assert merged == PrecisionLoss(40, 0.2, pytest.approx(0.99675), pytest.approx(0.85))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (PrecisionLoss(16, 0.5, 1.0, 1.0), r"ads: with vectors in int8, a probability is 0\.5 from .*, allowed 0\.02"),
        (PrecisionLoss(16, float("nan"), 1.0, 1.0), "a probability is nan from the exact one"),
        (PrecisionLoss(ENOUGH_ADS, 0.01, 0.9, 1.0), r"rank correlation 0\.9 with the exact order, wanted 0\.998"),
        (
            PrecisionLoss(ENOUGH_ADS, 0.01, 1.0, 0.5),
            r"0\.500 of the exact top 4 ads are found, wanted 0\.900; choose another",
        ),
    ],
)
def test_what_is_outside_the_limits_is_refused_with_figure_and_limit(loss: PrecisionLoss, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        judge(loss, "int8")
    judge(PrecisionLoss(ENOUGH_ADS, 0.01, 0.999, 0.95), "int8")


def test_the_order_of_ads_that_are_equal_but_for_rounding_is_not_judged() -> None:
    judge(PrecisionLoss(ENOUGH_ADS, 1e-8, 0.2, 1.0), "fp16")


def test_the_order_of_a_few_ads_is_judged_with_all_others() -> None:
    few = PrecisionLoss(16, 0.001, 0.5, 0.5)
    judge(few, "fp16")
    judge(PrecisionLoss(16 * ENOUGH_ADS, 0.001, 1.0, 1.0).merge(PrecisionLoss(2, 0.001, 0.5, 0.5)), "fp16")
    merged = NO_LOSS
    for _ in range(ENOUGH_ADS // 16):
        merged = merged.merge(few)
    with pytest.raises(ArtifactError, match=r"rank correlation 0\.5"):
        judge(merged, "fp16")


def judge(loss: PrecisionLoss, precision: str) -> None:
    """As a build does: errors of a batch, order of all."""
    loss.check_error(precision, source="ads")
    loss.check_order(precision, source="ads")


def test_a_batch_that_loses_too_much_stops_the_embedding(
    bundles: Path, ads_table: Callable[..., pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = AdEmbedder(open_bundle(bundles / "two_tower"), None, precision="int8", threads=1)
    loss = embedder.embed(ads_table(100), source="ads").counters.precision
    assert 0 < loss.error <= precision.LIMITS["int8"].error
    monkeypatch.setitem(precision.LIMITS, "int8", PrecisionLimit(loss.error / 2, 0.0, 0.0))
    with pytest.raises(ArtifactError, match=r"a\.parquet: with vectors in int8, a probability is .* allowed"):
        embedder.embed(ads_table(100), source="a.parquet")


def test_int8_embeddings_score_as_fp32_ones_do(bundles: Path, ads_table: Callable[..., pa.Table]) -> None:
    bundle = open_bundle(bundles / "two_tower")
    table = ads_table(60)
    found = AdEmbedder(bundle, None, precision="int8", threads=1).embed(table, source="ads").ads
    towers = TwoTowerServing.load(bundle, threads=1)
    vectors, bias = split_pin_embedding(towers.embed_ads(towers.ad_encoder.encode(table).encoded))
    query = towers.embed_query(towers.query_encoder.encode({"country": pa.array(["FR"])}).encoded)[0]
    exact, stored = score(query, vectors, bias), score(query, found.vectors, found.bias, found.scales)
    assert found.scales is not None
    largest = np.abs(vectors.reshape(60, 2, -1)).max(2)  # an error of half a step in each dimension, at most
    allowed = largest / 127 / 2 * np.abs(query[:, :-2]).sum(1) + 1e-5
    assert (np.abs(exact - stored) <= allowed).all()
    np.testing.assert_array_equal(found.bias, bias)


def test_checked_ads_are_spread_over_the_usable_ones() -> None:
    usable = np.ones(100, bool)
    usable[50:] = False
    assert spread_rows(usable, 5).tolist() == [0, 12, 24, 36, 49]
    assert spread_rows(usable[:3], 5).tolist() == [0, 1, 2]
    assert spread_rows(np.zeros(4, bool), 5).tolist() == []
