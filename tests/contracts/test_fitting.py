from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from contracts.encoding import Encoder
from contracts.errors import ConfigError, LogError
from contracts.fitting import fit_schema
from contracts.schema import Feature, FeatureSchema, Fitted, Table

COUNTRIES = ["DE", "FR", "中国", None, "IT", "DE", "中国", "FR", "IT", "DE"]


def query_table(rows: int = 5_000) -> pa.Table:
    random = np.random.default_rng(3)
    ctr = random.normal(0.3, 0.05, rows)
    return pa.table(
        {
            "country": pa.array((COUNTRIES * rows)[:rows]),
            "user_ctr": pa.array(ctr, mask=random.random(rows) < 0.1),
            "visits": pa.array(random.geometric(0.2, rows)),
        }
    )


def ad_table() -> pa.Table:
    return pa.table({"price": pa.array(np.random.default_rng(4).lognormal(2, 1, 2_000))})


def pair_table() -> pa.Table:
    return pa.table({"user_advertiser_clicks": pa.array([0, 1, None, 3])})


def batches(size: int) -> list[dict[Any, pa.Table]]:
    tables = {"query": query_table(), "ad": ad_table(), "pair": pair_table()}
    return [{side: table.slice(at, size)} for side, table in tables.items() for at in range(0, len(table), size)]


def test_means_deviations_and_vocabularies_equal_the_plain_formulas(unfitted: FeatureSchema) -> None:
    fitted = fit_schema(unfitted, batches(700))
    assert fitted.is_fitted
    ctr = query_table()["user_ctr"].drop_null().to_numpy()
    price = np.log1p(ad_table()["price"].to_numpy())
    clicks = np.log1p([0, 1, 3])
    for name, values in {"user_ctr": ctr, "price": price, "user_advertiser_clicks": clicks}.items():
        state = fitted.features[name].fitted
        assert state is not None
        np.testing.assert_allclose([state.mean, state.std], [values.mean(), values.std()], rtol=1e-12)
    assert fitted.tables["country"] == Table(dim=4, vocabulary=("DE", "FR", "IT"))  # 3 of 4; a tie goes by text


def test_the_edges_are_quantiles_of_the_raw_values(unfitted: FeatureSchema) -> None:
    state = fit_schema(unfitted, batches(5_000)).features["visits"].fitted
    assert state is not None
    visits = query_table()["visits"].to_numpy()
    assert state.edges == tuple(np.unique(np.quantile(visits, [0, 0.25, 0.5, 0.75, 1])).tolist())


def test_other_slices_of_the_log_give_the_same_schema(unfitted: FeatureSchema) -> None:
    whole, sliced = fit_schema(unfitted, batches(5_000)), fit_schema(unfitted, batches(37))
    assert sliced.tables == whole.tables
    assert sliced.features["visits"] == whole.features["visits"]
    for name in ("user_ctr", "price"):
        one, other = whole.features[name].fitted, sliced.features[name].fitted
        assert one is not None
        assert other is not None
        np.testing.assert_allclose([other.mean, other.std], [one.mean, one.std], rtol=1e-12)


def test_the_same_log_and_seed_give_the_same_fingerprint(
    unfitted: FeatureSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contracts.fitting._SAMPLE", 500)
    first = fit_schema(unfitted, batches(700))
    assert fit_schema(unfitted, batches(700)).fingerprint() == first.fingerprint()
    fewer = {name: feature for name, feature in unfitted.features.items() if name != "user_ctr"}
    alone = fit_schema(msgspec.structs.replace(unfitted, features=fewer), batches(700))
    assert alone.features["visits"] == first.features["visits"]


def test_a_sample_smaller_than_the_log_is_uniform(unfitted: FeatureSchema, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contracts.fitting._SAMPLE", 2_000)
    values = np.arange(100_000)
    only = {"visits": msgspec.structs.replace(unfitted.features["visits"], buckets=10)}
    schema = msgspec.structs.replace(unfitted, features=only, tables={})
    slices = [{"query": pa.table({"visits": part})} for part in np.split(values, 50)]
    state = fit_schema(schema, slices).features["visits"].fitted  # type: ignore[arg-type]
    assert state is not None
    assert state.edges is not None
    np.testing.assert_allclose(state.edges, np.linspace(0, 100_000, 11), atol=4 * 100_000 * 0.5 / 2_000**0.5)


def test_standardised_features_have_mean_zero_and_deviation_one(unfitted: FeatureSchema) -> None:
    fitted = fit_schema(unfitted, batches(700))
    floats = Encoder(fitted, "ad").encode(ad_table(), absent="missing").encoded.floats
    np.testing.assert_allclose([floats[:, 3].mean(), floats[:, 3].std()], [0.0, 1.0], atol=1e-5)
    ranks = Encoder(fitted, "query").encode(query_table(), absent="missing").encoded.floats[:, 1]
    assert ranks.min() == -1.0
    assert ranks.max() == 1.0


def test_one_vocabulary_counts_all_features_that_share_it() -> None:
    text = {"kind": "categorical", "table": "word"}
    schema = msgspec.convert(
        {
            "version": 1,
            "tasks": ["click"],
            "objectives": {"click": "click"},
            "tables": {"word": {"dim": 2, "max_values": 4}},
            "features": {
                "own": {"side": "query", **text},
                "past": {"side": "query", "kind": "sequence", "max_length": 2, "fields": {"word": text}},
                "ad": {"side": "ad", "kind": "multi_categorical", "table": "word", "max_length": 2},
            },
        },
        FeatureSchema,
    )
    query = pa.table(
        {"own": pa.array([7, None, 7]).dictionary_encode(), "past.word": [["b", "c"], None, ["b", None, "b"]]}
    )
    ad = pa.table({"ad": pa.array([["c"], ["é"], [], None, ["a", "z"]], pa.large_list(pa.large_string()))})
    counts = Counter({"7": 2, "b": 3, "c": 2, "é": 1, "a": 1, "z": 1})
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    fitted = fit_schema(schema, [{"query": query}, {"ad": ad}])
    assert fitted.tables["word"].vocabulary == tuple(ranked[:4]) == ("b", "7", "c", "a")


def test_what_is_fitted_already_stays(unfitted: FeatureSchema, schema: FeatureSchema) -> None:
    assert fit_schema(schema, []) == schema
    fixed = msgspec.structs.replace(unfitted.features["price"], fitted=Fitted(mean=1.0, std=2.0))
    half = msgspec.structs.replace(unfitted, features={**unfitted.features, "price": fixed})
    assert fit_schema(half, batches(700)).features["price"] == fixed


def test_a_constant_feature_is_not_blown_up(unfitted: FeatureSchema) -> None:
    only = msgspec.structs.replace(unfitted, features={"price": unfitted.features["price"]}, tables={})
    fitted = fit_schema(only, [{"ad": pa.table({"price": [0.1] * 1_000})}])
    state = fitted.features["price"].fitted
    assert state is not None
    assert state.std == 1.0
    encoded = Encoder(fitted, "ad").encode({"price": pa.array([0.1, None])}).encoded
    np.testing.assert_allclose(encoded.floats, [[0.0], [0.0]], atol=1e-7)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("transform", ["standardize", "quantile"])
def test_nan_and_infinity_are_refused(value: float, transform: Any) -> None:
    feature = Feature(side="ad", kind="dense", transform=transform)
    schema = FeatureSchema(tasks=("click",), objectives={"click": "click"}, features={"x": feature})
    with pytest.raises(LogError, match=r"^ads: column 'x' holds NaN, an infinity"):
        fit_schema(schema, [{"ad": pa.table({"x": [1.0, value]})}], source="ads")


def test_absent_wrong_and_empty_columns_are_refused(unfitted: FeatureSchema) -> None:
    with pytest.raises(LogError, match=r"^ads: column 'price' is missing, expected for side 'ad' of the schema"):
        fit_schema(unfitted, [{"ad": pa.table({"video_id": [1]})}], source="ads")
    with pytest.raises(LogError, match="column 'price' has type string, expected numbers"):
        fit_schema(unfitted, [{"ad": pa.table({"price": ["1"]})}])
    with pytest.raises(LogError, match="column 'country' has type double, expected text"):
        fit_schema(unfitted, [{"query": query_table().set_column(0, "country", pa.array([1.0] * 5_000))}])
    with pytest.raises(ConfigError, match=r"features\.user_ctr: no value in the log, expected at least one"):
        fit_schema(unfitted, [])
    empty = query_table().set_column(0, "country", pa.nulls(5_000))
    with pytest.raises(ConfigError, match=r"tables\.country: no value in the log"):
        fit_schema(unfitted, [{"query": empty, "ad": ad_table(), "pair": pair_table()}])
