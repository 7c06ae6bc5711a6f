"""Counts of a catalogue add up and say how far it is from training, as loops do; warnings name the cause."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from contracts.artifact import FileEntry
from contracts.bundle import Bundle, open_bundle
from contracts.encoding import Coverage, Encoded, Encoder
from contracts.histogram import float_bins, id_bins, quantile_edges
from contracts.layout import FloatColumn
from contracts.release import IndexManifest
from indexing.embed import AdEmbedder
from indexing.shift import AdProfile, ShiftCounts, ad_profile, coverage_lines, shift_warnings, stability_index

MakeBundle = Callable[..., Bundle]


def training(bundle: Bundle, table: pa.Table) -> dict[str, Any]:
    """The profile of a training set, by plain formulas."""
    batch = Encoder(bundle.schema, "ad").encode(table)
    layout = Encoder(bundle.schema, "ad").layout
    features: dict[str, Any] = {}
    for column in layout.dense:
        values = batch.encoded.floats[:, column.start]
        edges = quantile_edges(values)
        shares = float_bins(values, edges) / len(values)
        features[column.name] = {"mean": float(values.mean()), "std": float(values.std())}
        features[column.name]["histogram"] = {"edges": edges.tolist(), "shares": shares.tolist()}
    for bag in layout.bags:
        counts = id_bins(batch.encoded.ids[:, bag.start : bag.start + bag.width])
        features[bag.name] = {"groups": (counts / counts.sum()).tolist()}
    for name, found in features.items():
        found["missing"] = batch.coverage.missing.get(name, 0) / len(table)
        found["out_of_vocabulary"] = batch.coverage.out_of_vocabulary.get(name, 0) / len(table)
    return {"rows": len(table), "features": features}


@pytest.fixture
def profiled(make_two_tower: MakeBundle, ads_table: Callable[..., pa.Table], tmp_path: Path) -> Bundle:
    """A bundle with the profile of 500 ads."""
    bundle = make_two_tower(tmp_path / "two_tower")
    return with_profile(bundle, {"ad": training(bundle, ads_table(500))})


def with_profile(bundle: Bundle, profile: dict[str, Any]) -> Bundle:
    (bundle.path / "profile.json").write_bytes(msgspec.json.encode(profile))
    files = {**bundle.manifest.files, "profile.json": FileEntry(sha256="", bytes=0)}
    return replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, files=files))


def report(bundle: Bundle, table: pa.Table) -> tuple[dict[str, Any], list[str]]:
    embedder = AdEmbedder(bundle, None, precision="fp16", threads=1)
    shift, warnings = embedder.report(embedder.embed(table, source="ads").counters)
    return shift["two_tower"], warnings


def test_a_catalogue_like_training_gives_no_warning(profiled: Bundle, ads_table: Callable[..., pa.Table]) -> None:
    shift, warnings = report(profiled, ads_table(400, seed=3))
    assert warnings == []
    assert abs(shift["price"]["mean_shift"]) < 0.2


def test_shares_means_and_index_equal_plain_formulas(profiled: Bundle, ads_table: Callable[..., pa.Table]) -> None:
    prices = [None if n % 5 < 2 else 900.0 + n for n in range(300)]
    table = ads_table(300, seed=4, price=pa.array(prices), category=["new"] * 300)
    shift, warnings = report(profiled, table)
    trained = training(profiled, ads_table(500))["features"]
    assert shift["price"]["missing"] == 0.4
    assert shift["price"]["missing_trained"] == trained["price"]["missing"]
    values = np.array([math.log1p(1.0 if price is None else price) for price in prices])
    assert shift["price"]["mean"] == pytest.approx(values.mean(), rel=1e-6)
    expected = (values.mean() - trained["price"]["mean"]) / trained["price"]["std"]
    assert shift["price"]["mean_shift"] == pytest.approx(expected, rel=1e-5)
    assert shift["category"]["out_of_vocabulary"] == 1.0
    found = [0] * 10
    edges = trained["price"]["histogram"]["edges"]
    for value in values.astype(np.float32):
        found[sum(value > edge for edge in edges)] += 1
    psi = 0.0
    used = 0
    for count, share in zip(found, trained["price"]["histogram"]["shares"], strict=False):
        if count or share:
            used += 1
            here, there = max(count / 300, 1e-4), max(share, 1e-4)
            psi += (here - there) * math.log(here / there)
    assert shift["price"]["psi"] == pytest.approx(psi - (used - 1) * (1 / 300 + 1 / 500))
    price, category = (next(line for line in warnings if f" {name}: " in line) for name in ("price", "category"))
    assert price.startswith(f"two_tower price: 40 % missing, {100 * trained['price']['missing']:.0f} % in training; ")
    assert "training standard deviations above that of training" in price
    assert "100 % out of vocabulary" in category


def test_chance_in_few_rows_is_no_shift(profiled: Bundle, ads_table: Callable[..., pa.Table]) -> None:
    for seed in range(5, 10):
        assert report(profiled, ads_table(12, seed=seed))[1] == []


def test_counts_of_parts_add_up_to_the_whole(profiled: Bundle, ads_table: Callable[..., pa.Table]) -> None:
    profile = ad_profile(profiled)
    assert profile is not None
    encoded = Encoder(profiled.schema, "ad").encode(ads_table(200, seed=5)).encoded
    valid = np.arange(200) % 7 != 0
    whole = profile.count(encoded, valid)
    first, second = (profile.count(encoded.take(part), valid[part]) for part in (slice(0, 70), slice(70, 200)))
    merged = first.merge(ShiftCounts.from_dict(msgspec.json.decode(msgspec.json.encode(second.as_dict()))))
    assert merged.rows == whole.rows == int(valid.sum())
    assert {name: bins.tolist() for name, bins in merged.bins.items()} == {
        name: bins.tolist() for name, bins in whole.bins.items()
    }
    assert merged.sums == pytest.approx(whole.sums)


def test_a_bundle_without_a_profile_is_not_compared(bundles: Path, ads_table: Callable[..., pa.Table]) -> None:
    bundle = open_bundle(bundles / "two_tower")
    assert ad_profile(bundle) is None
    embedder = AdEmbedder(bundle, None, precision="fp16", threads=1)
    assert embedder.report(embedder.embed(ads_table(20), source="ads").counters) == ({}, [])


def test_an_older_profile_is_compared_by_its_quantiles() -> None:
    old = {"mean": 0.0, "std": 1.0, "missing": 0.0, "out_of_vocabulary": 0.0}
    quantiles = {"0.01": -2.3, "0.25": -0.7, "0.5": 0.0, "0.75": 0.7, "0.99": 2.3}
    tied = {"0.01": 0.0, "0.25": 0.0, "0.5": 0.0, "0.75": 0.7, "0.99": 2.3}
    profile = AdProfile(
        1000,
        {"x": {**old, "quantiles": quantiles}, "y": {**old, "quantiles": tied}},
        (FloatColumn(name="x", start=0, width=1), FloatColumn(name="y", start=1, width=1)),
        (),
    )
    floats = np.random.default_rng(0).normal(3.0, 1.0, (1000, 2)).astype(np.float32)
    encoded = Encoded(np.zeros((1000, 0), np.int32), floats)
    found = profile.report(profile.count(encoded, np.ones(1000, bool)), Coverage(rows=1000))
    assert found["x"]["psi"] > 1
    assert "psi" not in found["y"]
    assert found["y"]["mean_shift"] == pytest.approx(3.0, abs=0.2)


def test_no_rows_give_no_index_and_no_warning() -> None:
    assert stability_index(np.array([9, 9, 9]), np.array([0.2, 0.3, 0.5]), trained_rows=10) is None
    assert stability_index(np.zeros(3, np.int64), np.array([0.2, 0.3, 0.5]), trained_rows=10) is None
    assert shift_warnings("heavy", {}) == []


def test_lines_for_people() -> None:
    manifest = IndexManifest(
        version="v",
        scenario="s",
        two_tower="t",
        ad_fingerprint="f",
        tasks=[],
        objectives=[],
        head_dim=1,
        precision="fp16",
        num_ads=1,
        catalog={},
        statuses={},
        dropped={},
        faults={},
        coverage={
            "two_tower": {"rows": 2000, "missing": {"price": 820, "brand": 10}, "out_of_vocabulary": {"brand": 0}}
        },
        warnings=["two_tower price: 41 % missing, 2 % in training"],
        watermark="",
        files={},
        created_at="",
    )
    assert coverage_lines(manifest) == [
        "two_tower: 2,000 ads, at most 41 % missing (price)",
        "warning: two_tower price: 41 % missing, 2 % in training",
    ]
