import random
from typing import Any

import msgspec
import pytest

from contracts.config import convert
from contracts.layout import FlatSlice, side_layout
from contracts.schema import SIDES, FeatureSchema


def test_positions_follow_the_order_of_names(schema: FeatureSchema) -> None:
    query = side_layout(schema, "query")
    assert [(bag.name, bag.table, bag.start, bag.width, bag.dim) for bag in query.bags] == [
        ("country", "country", 0, 1, 4)
    ]
    (watch,) = query.sequences
    assert (watch.name, watch.max_length, watch.dim) == ("watch", 4, 8 + 2 + 16)
    assert [(field.name, field.table, field.start, field.width, field.dim) for field in watch.fields] == [
        ("tag", "tag", 1, 4, 8),
        ("time", "watch.time", 5, 4, 2),
        ("video_id", "video", 9, 4, 16),
    ]
    assert [(column.name, column.start, column.width) for column in query.dense] == [
        ("user_ctr", 0, 1),
        ("visits", 1, 1),
    ]
    assert (query.num_ids, query.num_floats) == (13, 2)


def test_bags_come_before_sequences_and_widths_add_up(schema: FeatureSchema) -> None:
    ad = side_layout(schema, "ad")
    assert [(bag.name, bag.start, bag.width) for bag in ad.bags] == [("tags", 0, 3), ("video_id", 3, 1)]
    assert [(column.name, column.start, column.width) for column in ad.dense] == [("image", 0, 3), ("price", 3, 1)]


@pytest.mark.parametrize("side", SIDES)
def test_ids_and_floats_are_covered_once(schema: FeatureSchema, side: Any) -> None:
    layout = side_layout(schema, side)
    columns = [*layout.bags, *(field for sequence in layout.sequences for field in sequence.fields)]
    ids = [position for column in columns for position in range(column.start, column.start + column.width)]
    floats = [position for column in layout.dense for position in range(column.start, column.start + column.width)]
    assert ids == list(range(layout.num_ids))
    assert floats == list(range(layout.num_floats))


def test_the_dense_input_is_floats_then_bags_then_pooled_fields(schema: FeatureSchema) -> None:
    layout = side_layout(schema, "query")
    plain = (FlatSlice("user_ctr", 0, 1), FlatSlice("visits", 1, 1), FlatSlice("country", 2, 4))
    pooled = (FlatSlice("watch.tag", 6, 8), FlatSlice("watch.time", 14, 2), FlatSlice("watch.video_id", 16, 16))
    assert layout.flat(pool_sequences=False) == plain
    assert layout.flat(pool_sequences=True) == plain + pooled
    assert layout.flat_dim(pool_sequences=False) == 6
    assert layout.flat_dim(pool_sequences=True) == 32


def test_a_side_without_features_has_no_width(schema: FeatureSchema) -> None:
    ad_only = {name: feature for name, feature in schema.features.items() if feature.side == "ad"}
    layout = side_layout(msgspec.structs.replace(schema, features=ad_only), "pair")
    assert (layout.num_ids, layout.num_floats, layout.flat_dim(pool_sequences=True)) == (0, 0, 0)


def test_the_layout_needs_no_fit_and_ignores_the_order_of_the_file(
    schema: FeatureSchema, schema_data: dict[str, Any]
) -> None:
    names = list(schema_data["features"])
    random.Random(7).shuffle(names)
    schema_data["features"] = {name: schema_data["features"][name] for name in names}
    unfitted = convert(schema_data, FeatureSchema, source="schema.yaml")
    for side in SIDES:
        assert side_layout(unfitted, side) == side_layout(schema, side)
