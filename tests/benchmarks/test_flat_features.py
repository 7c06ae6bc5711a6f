"""Flat features against the encoded rows that they come from, pair by pair."""

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.flat_features import flatten
from contracts.config import convert
from contracts.encoding import Encoder
from contracts.schema import FeatureSchema


class _Examples:
    """What flattening reads of examples."""

    def __init__(self, query, ad, request_row, ad_row):
        self.query, self.ad, self.pair = query, ad, None
        self.request_row, self.ad_row = request_row, ad_row


@pytest.fixture
def schema():
    events = {"kind": "sequence", "side": "query", "max_length": 3}
    data = {
        "tasks": ["click"],
        "objectives": {"click": "click"},
        "tables": {"tag": {"dim": 4, "vocabulary": ["x", "y", "z"]}},
        "features": {
            "rate": {"side": "query", "kind": "dense", "default": 0.0},
            "watch": events | {"fields": {"tag": {"kind": "categorical", "table": "tag"}}},
            "tag": {"side": "ad", "kind": "categorical", "table": "tag"},
        },
    }
    return convert(data, FeatureSchema, source="test")


def test_columns_equal_what_is_encoded(schema):
    query = {"rate": pa.array([0.5, 0.25]), "watch.tag": pa.array([["x", "y", "x"], []], pa.list_(pa.string()))}
    sides = [Encoder(schema, "query").encode(query), Encoder(schema, "ad").encode({"tag": pa.array(["x", "z"])})]
    examples = _Examples(*(side.encoded for side in sides), np.array([0, 1, 0]), np.array([0, 0, 1]))
    flat = flatten(schema, examples)
    columns = dict(zip(flat.names, flat.values.T.tolist(), strict=True))
    assert columns == {
        "rate.0": [0.5, 0.25, 0.5],
        "tag.0": [3.0, 3.0, 5.0],
        "watch.length": [3.0, 0.0, 3.0],
        "watch.tag.0": [3.0, 0.0, 3.0],
        "watch.tag.1": [4.0, 0.0, 4.0],
        "watch.same_tag": [2.0, 0.0, 0.0],
        "watch.share_of_tag": pytest.approx([2 / 3, 0.0, 0.0]),
    }
    assert flat.cardinality[flat.names.index("tag.0")] == 6
    assert flat.cardinality[flat.names.index("rate.0")] == 0
