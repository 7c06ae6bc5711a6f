import pytest

from adlogs.fit import named_schema
from benchmarks.simulated_setup import LEARNED_BY_HEART, TOKENS, judged_schema, tried
from contracts.schema import FeatureSchema
from heavy_ranker.build import resolve_groups


@pytest.fixture(scope="module")
def schema() -> FeatureSchema:
    return judged_schema(named_schema("simulated_heavy"))


def test_identifiers_are_gone_from_features_histories_and_tables(schema: FeatureSchema) -> None:
    histories = [name for feature in schema.features.values() for name in feature.fields or {}]
    assert not set(LEARNED_BY_HEART) & {*schema.features, *histories}
    assert "advertiser_id" in histories
    assert not {"ad", "brand"} & schema.tables.keys()


def test_judged_landing_pages_are_there(schema: FeatureSchema) -> None:
    assert schema.features["landing_score"].side == "ad"


@pytest.mark.parametrize("layers", [1, 2])
def test_every_feature_stands_in_one_token(schema: FeatureSchema, layers: int) -> None:
    config = tried(("hyformer",), num_layers=layers)
    groups = resolve_groups(schema, config.model)
    assert {side: groups[side] for side in ("query", "ad")} == TOKENS
    assert config.model.num_layers == layers
