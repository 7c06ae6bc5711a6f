import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from contracts import encoding
from contracts.encoding import EncodedBatch, Encoder
from contracts.schema import Feature, FeatureSchema, Fitted, Table
from contracts.shared_features import SharedFeatures

ROWS = 50


def schema(**changed: Any) -> FeatureSchema:
    """Features of an ad of every kind; ``changed`` replaces some, or tables by the name ``table_NAME``."""
    tables = {"word": Table(dim=4, buckets=40), "place": Table(dim=2, vocabulary=("DE", "FR"))}
    features = {
        "country": Feature(side="ad", kind="categorical", table="place"),
        "category": Feature(side="ad", kind="categorical", table="word"),
        "tags": Feature(side="ad", kind="multi_categorical", table="word", max_length=3),
        "price": Feature(side="ad", kind="dense", transform="standardize", fitted=Fitted(mean=1.0, std=2.0)),
        "image": Feature(side="ad", kind="embedding", length=2),
    }
    for name, value in changed.items():
        if name.startswith("table_"):
            tables[name.removeprefix("table_")] = value
        else:
            features[name] = value
    return FeatureSchema(tasks=("click",), objectives={"click": "click"}, tables=tables, features=features)


PLAIN = schema()
OTHERS = {
    "the same": PLAIN,
    "wider tables": schema(table_word=Table(dim=64, buckets=40), table_place=Table(dim=1, vocabulary=("DE", "FR"))),
    "other buckets": schema(table_word=Table(dim=4, buckets=41)),
    "another vocabulary": schema(table_place=Table(dim=2, vocabulary=("FR", "DE"))),
    "shorter lists": schema(tags=Feature(side="ad", kind="multi_categorical", table="word", max_length=2)),
    "another mean": schema(
        price=Feature(side="ad", kind="dense", transform="standardize", fitted=Fitted(mean=1.5, std=2.0))
    ),
    "one more feature": schema(size=Feature(side="ad", kind="dense", default=0.0)),
    "another table": schema(category=Feature(side="ad", kind="categorical", table="place")),
}


def rows(with_faults: bool) -> pa.Table:
    rng = np.random.default_rng(0)
    prices = [None if one < 0.2 else float(one) for one in rng.random(ROWS)]
    images: list[Any] = [[float(one), 1.0] for one in rng.random(ROWS)]
    if with_faults:
        prices[3] = prices[40] = float("nan")
        images[7], images[40] = [1.0], [float("inf"), 0.0]
    words = [f"w{number}" for number in range(30)]
    return pa.table(
        {
            "country": pa.array(rng.choice(["DE", "FR", "XX"], ROWS)),
            "category": pa.array([None if one % 7 == 0 else words[one % 30] for one in range(ROWS)]),
            "tags": pa.array([list(rng.choice(words, one % 5)) if one % 6 else None for one in range(ROWS)]),
            "price": pa.array(prices),
            "image": pa.array(images, pa.list_(pa.float32())),
            "size": pa.array(rng.random(ROWS)),
        }
    )


def assert_equal(found: EncodedBatch, expected: EncodedBatch) -> None:
    np.testing.assert_array_equal(found.encoded.ids, expected.encoded.ids)
    np.testing.assert_array_equal(found.encoded.floats, expected.encoded.floats)
    np.testing.assert_array_equal(found.invalid, expected.invalid)
    assert dataclasses.asdict(found.coverage) == dataclasses.asdict(expected.coverage)
    assert sorted(found.faults, key=str) == sorted(expected.faults, key=str)


@pytest.mark.parametrize("with_faults", [False, True])
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_models_that_share_features_encode_what_each_would_alone(
    other: FeatureSchema, with_faults: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "_ROWS_AT_ONCE", 16)  # several slices
    table = rows(with_faults)
    encoders = [Encoder(one, "ad") for one in (PLAIN, other, PLAIN)]
    alone = [encoder.encode(table, invalid="mark") for encoder in encoders]
    shared = SharedFeatures()
    together = [encoder.encode(table, invalid="mark", shared=shared) for encoder in encoders]
    for found, expected in zip(together, alone, strict=True):
        assert_equal(found, expected)


def test_a_shared_feature_is_encoded_once() -> None:
    table, shared = rows(with_faults=False), SharedFeatures()
    Encoder(PLAIN, "ad").encode(table, shared=shared)
    first = Encoder(PLAIN, "ad").encode(table.select(["country"]), absent="missing").encoded.ids
    copied = Encoder(PLAIN, "ad").encode({}, num_rows=ROWS, absent="missing", shared=shared)
    assert not np.array_equal(first, copied.encoded.ids)
    np.testing.assert_array_equal(copied.encoded.ids, Encoder(PLAIN, "ad").encode(table).encoded.ids)


def test_a_model_of_the_same_features_is_given_the_same_arrays() -> None:
    table, shared = rows(with_faults=True), SharedFeatures()
    first, wider, more = (
        Encoder(OTHERS[name], "ad").encode(table, invalid="mark", shared=shared)
        for name in ("the same", "wider tables", "one more feature")
    )
    assert wider.encoded.ids is first.encoded.ids
    assert wider.encoded.floats is first.encoded.floats
    assert more.encoded.ids is not first.encoded.ids
