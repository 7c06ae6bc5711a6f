import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from contracts.config import convert
from contracts.errors import ConfigError
from contracts.schema import Feature, FeatureSchema, Fitted, SequenceField, Table, load_schema, save_schema

EXAMPLE = """
version: 1
tasks: [click, conversion]                # a chain
objectives: {impression: null, click: click, conversion: conversion}
tables:
  video: {dim: 16, buckets: 16384}        # id = 3 + xxhash64(value) % (buckets - 3)
  tag:   {dim: 8, vocabulary: ["1", "39"]}
  country: {dim: 4, max_values: 50}
features:
  country:  {side: query, kind: categorical, table: country}
  user_ctr: {side: query, kind: dense, transform: standardize, default: .45}
  video_id: {side: ad, kind: categorical, table: video}
  tags:     {side: ad, kind: multi_categorical, table: tag, max_length: 4, pooling: mean}
  image:    {side: ad, kind: embedding, length: 64}
  user_advertiser_clicks: {side: pair, kind: dense, transform: log1p}
  watch:
    {side: query, kind: sequence, max_length: 50,
     fields: {video_id: {kind: categorical, table: video}, tag: {kind: categorical, table: tag},
              time: {kind: age, buckets: 32}}}
"""

Change = Callable[[dict[str, Any]], None]


def parse(data: dict[str, Any]) -> FeatureSchema:
    return convert(data, FeatureSchema, source="schema.yaml")


def shuffled(value: Any, order: random.Random) -> Any:
    """The same mappings, entries in another order; lists keep theirs."""
    if isinstance(value, dict):
        entries = [(key, shuffled(inner, order)) for key, inner in value.items()]
        order.shuffle(entries)
        return dict(entries)
    return value


def test_a_schema_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(EXAMPLE, encoding="utf-8")
    schema = load_schema(tmp_path / "schema.yaml")
    assert schema.tasks == ("click", "conversion")
    assert schema.tables["tag"] == Table(dim=8, vocabulary=("1", "39"))
    assert schema.features["user_ctr"] == Feature(side="query", kind="dense", transform="standardize", default=0.45)
    assert schema.features["watch"].fields == {
        "video_id": SequenceField(kind="categorical", table="video"),
        "tag": SequenceField(kind="categorical", table="tag"),
        "time": SequenceField(kind="age", buckets=32),
    }
    assert list(schema.side_features("query")) == ["country", "user_ctr", "watch"]
    assert schema.objective_names == ("click", "conversion", "impression")


def test_saved_equals_loaded(tmp_path: Path, schema: FeatureSchema, unfitted: FeatureSchema) -> None:
    for name, one in {"fitted": schema, "unfitted": unfitted}.items():
        save_schema(one, tmp_path / f"{name}.yaml")
        loaded = load_schema(tmp_path / f"{name}.yaml")
        assert loaded == one
        assert loaded.fingerprint() == one.fingerprint()
        assert (tmp_path / f"{name}.yaml").read_text(encoding="utf-8").startswith("version: 1\n")


def test_tables_count_their_reserved_rows(schema: FeatureSchema, unfitted: FeatureSchema) -> None:
    tables = schema.all_tables()
    assert list(tables) == ["country", "tag", "video", "watch.time"]
    assert {name: table.num_rows for name, table in tables.items()} == {
        "country": 3 + 3,
        "tag": 3 + 3,
        "video": 1000,
        "watch.time": 12,
    }
    assert tables["watch.time"].dim == 2
    with pytest.raises(ConfigError, match="adsieve schema fit"):
        _ = unfitted.tables["country"].num_rows


def test_an_unfitted_schema_says_what_to_run(unfitted: FeatureSchema, schema: FeatureSchema) -> None:
    features = ("features.price", "features.user_advertiser_clicks", "features.user_ctr", "features.visits")
    assert unfitted.unfitted == ("tables.country", *features)
    with pytest.raises(ConfigError, match=r"tables\.country, features\.price.*run `adsieve schema fit`"):
        unfitted.require_fitted()
    schema.require_fitted()
    assert schema.is_fitted


def test_a_file_that_is_not_fitted_is_named(unfitted: FeatureSchema, tmp_path: Path) -> None:
    save_schema(unfitted, tmp_path / "schema.yaml")
    assert not load_schema(tmp_path / "schema.yaml").is_fitted
    with pytest.raises(ConfigError, match=r"schema\.yaml: schema is not fitted, tables\.country"):
        load_schema(tmp_path / "schema.yaml", fitted=True)


def test_a_default_spares_the_fit_only_where_nothing_else_is_fitted() -> None:
    dense = Feature(side="query", kind="dense", transform="log1p", default=0.0)
    assert dense.is_fitted
    assert not msgspec.structs.replace(dense, default=None).is_fitted
    assert msgspec.structs.replace(dense, default=None, fitted=Fitted(mean=1.0)).is_fitted
    assert not msgspec.structs.replace(dense, transform="standardize", fitted=Fitted(mean=1.0)).is_fitted
    assert not msgspec.structs.replace(dense, transform="quantile", fitted=Fitted(mean=1.0, std=1.0)).is_fitted


@pytest.mark.parametrize("seed", range(5))
def test_fingerprints_depend_on_no_order_comment_or_label(schema: FeatureSchema, seed: int) -> None:
    data = shuffled({"version": 1, **msgspec.to_builtins(schema)}, random.Random(seed))
    for feature in data["features"].values():
        feature["label"] = f"told {seed} times"
    other = parse(data)
    assert other.fingerprint() == schema.fingerprint()
    assert other.feature_fingerprints() == schema.feature_fingerprints()
    for side in ("query", "ad", "pair"):
        assert other.side_fingerprint(side) == schema.side_fingerprint(side)


def test_the_fingerprint_of_a_known_schema_does_not_move(schema: FeatureSchema) -> None:
    """It names bundles and indexes on disk: a release that changes it orphans them all."""
    assert schema.fingerprint() == "8b16ae24a2634565a837642c1656f2202c471edcdfeac0dad6bc84783462d8a1"


def test_spelling_out_an_age_default_changes_nothing(schema_data: dict[str, Any]) -> None:
    fields = schema_data["features"]["watch"]["fields"]
    fields["time"] = {"kind": "age"}
    implicit = parse(schema_data).fingerprint()
    fields["time"] = {"kind": "age", "buckets": 32, "dim": 8}
    assert parse(schema_data).fingerprint() == implicit


CHANGES: dict[str, tuple[Change, set[str]]] = {
    "a hashed table": (lambda s: s["tables"]["video"].update(buckets=1001), {"video_id", "watch"}),
    "a width": (lambda s: s["tables"]["country"].update(dim=5), {"country"}),
    "the order of a vocabulary": (lambda s: s["tables"]["tag"]["vocabulary"].reverse(), {"tags", "seen", "watch"}),
    "a vocabulary's value": (lambda s: s["tables"]["tag"]["vocabulary"].append("x"), {"tags", "seen", "watch"}),
    "a length": (lambda s: s["features"]["tags"].update(max_length=4), {"tags"}),
    "a default": (lambda s: s["features"]["user_ctr"].update(default=0.46), {"user_ctr"}),
    "no default": (lambda s: s["features"]["user_ctr"].pop("default"), {"user_ctr"}),
    "a transform": (lambda s: s["features"]["price"].update(transform="standardize"), {"price"}),
    "a fitted mean": (lambda s: s["features"]["price"].update(fitted={"mean": 1.0}), {"price"}),
    "an age's buckets": (lambda s: s["features"]["watch"]["fields"]["time"].update(buckets=13), {"watch"}),
    "an age's width": (lambda s: s["features"]["watch"]["fields"]["time"].update(dim=3), {"watch"}),
    "tasks": (lambda s: s["tasks"].append("deep_conversion"), set()),
    "the order of tasks": (lambda s: s["tasks"].reverse(), set()),
    "objectives": (lambda s: s["objectives"].update(click="conversion"), set()),
    "an unused table": (lambda s: s["tables"].update(spare={"dim": 1, "buckets": 10}), set()),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_decides_ids_floats_or_weights_changes_the_fingerprint(schema_data: dict[str, Any], what: str) -> None:
    before = parse(schema_data)
    change, touched = CHANGES[what]
    change(schema_data)
    after = parse(schema_data)
    assert after.fingerprint() != before.fingerprint()
    old, new = before.feature_fingerprints(), after.feature_fingerprints()
    assert {name for name in old if old[name] != new[name]} == touched
    for side in ("query", "ad", "pair"):
        own = {name for name in touched if before.features[name].side == side}
        assert (after.side_fingerprint(side) != before.side_fingerprint(side)) == bool(own)


def test_two_features_alike_have_fingerprints_of_their_own(schema_data: dict[str, Any]) -> None:
    schema_data["features"]["twin"] = schema_data["features"]["country"]
    schema = parse(schema_data)
    assert schema.feature_fingerprints()["twin"] != schema.feature_fingerprints()["country"]


def feature(name: str, **changes: Any) -> Change:
    return lambda s: s["features"].setdefault(name, {}).update(changes)


def table(name: str, **changes: Any) -> Change:
    return lambda s: s["tables"].setdefault(name, {}).update(changes)


def watch(field: str, **changes: Any) -> Change:
    return lambda s: s["features"]["watch"]["fields"].setdefault(field, {}).update(changes)


def top(**changes: Any) -> Change:
    return lambda s: s.update(changes)


MALFORMED: list[tuple[Change, str]] = [
    (top(version=2), "version: expected one of 1, got 2"),
    (top(tasks=[]), "tasks: expected at least one task, got []"),
    (top(tasks=["click", "click"]), "tasks[1]: 'click' is listed twice"),
    (top(tasks=["click", "conversion", "a b"]), "tasks[2]: 'a b' is not a name, expected a letter"),
    (top(tasks="click"), 'tasks: expected a list, got "click"'),
    (top(objectives={}), "objectives: expected at least one"),
    (
        top(objectives={"click": "clik"}),
        "objectives.click: unknown task 'clik', expected null or one of 'click', 'conversion'; did you mean",
    ),
    (top(objectives={"9": None}), "objectives.9: '9' is not a name"),
    (top(features={}), "features: expected at least one, got {}"),
    (top(feature={}), "feature: unknown field with value {}, expected one of 'version', 'tasks',"),
    (lambda s: s.pop("tasks"), "tasks: required field is missing"),
    (
        table("video", vocabulary=["a"]),
        "tables.video: expected exactly one of 'buckets', 'vocabulary', 'max_values', got ['buckets', 'vocabulary']",
    ),
    (table("new", dim=4), "tables.new: expected exactly one of 'buckets', 'vocabulary', 'max_values', got none"),
    (table("video", buckets=3), "tables.video.buckets: expected 4..2147483647, got 3"),
    (table("video", dim=0), "tables.video.dim: expected 1..4096, got 0"),
    (table("video", dim="16"), 'tables.video.dim: expected a whole number, got "16"'),
    (table("country", max_values=0), "tables.country.max_values: expected 1..2147483647, got 0"),
    (table("tag", vocabulary=[]), "tables.tag.vocabulary: expected at least one value, got []"),
    (table("tag", vocabulary=["a", "b", "a"]), "tables.tag.vocabulary[2]: 'a' is listed twice"),
    (table("tag", vocabulary=["a", 39]), "tables.tag.vocabulary[1]: expected text, got 39"),
    (table("watch.time", dim=4, buckets=9), "tables.watch.time: 'watch.time' is not a name"),
    (feature("country", side="user"), "features.country.side: expected one of 'ad', 'pair', 'query', got \"user\""),
    (feature("country", kind="category"), "features.country.kind: expected one of 'categorical',"),
    (
        feature("country", tabel="country"),
        "features.country.tabel: unknown field with value \"country\", expected one of 'side',",
    ),
    (
        feature("country", table="contry"),
        "features.country.table: unknown table 'contry', expected one of 'video', 'tag', 'country'; did you mean",
    ),
    (feature("country", table=None), "features.country.table: required for kind 'categorical', got null"),
    (
        feature("country", max_length=3),
        "features.country.max_length: not for kind 'categorical', expected it to be absent, got 3",
    ),
    (feature("tags", max_length=None), "features.tags.max_length: required for kind 'multi_categorical', got null"),
    (feature("tags", max_length=0), "features.tags.max_length: expected 1..65536, got 0"),
    (feature("tags", pooling="max"), "features.tags.pooling: expected one of 'mean', 'sum', got \"max\""),
    (
        feature("tags", transform="log1p"),
        "features.tags.transform: not for kind 'multi_categorical', expected it to be absent, got \"log1p\"",
    ),
    (feature("image", length=None), "features.image.length: required for kind 'embedding', got null"),
    (
        feature("image", default=0.0),
        "features.image.default: not for kind 'embedding', expected it to be absent, got 0.0",
    ),
    (
        feature("user_ctr", table="tag"),
        "features.user_ctr.table: not for kind 'dense', expected it to be absent, got \"tag\"",
    ),
    (feature("user_ctr", default=float("nan")), "features.user_ctr.default: expected a finite number or null, got nan"),
    (feature("user_ctr", default="0.45"), 'features.user_ctr.default: expected a number or null, got "0.45"'),
    (
        feature("user_ctr", buckets=4),
        "features.user_ctr.buckets: only for transform 'quantile', expected it to be absent, got 4",
    ),
    (feature("visits", buckets=1), "features.visits.buckets: expected 2..65536, got 1"),
    (feature("user_ctr", transform="log"), "features.user_ctr.transform: expected one of"),
    (
        feature("user_ctr", fitted={"mean": float("inf")}),
        "features.user_ctr.fitted.mean: expected a finite number, got inf",
    ),
    (feature("user_ctr", fitted={"std": 0.0}), "features.user_ctr.fitted.std: expected a number above 0, got 0.0"),
    (
        feature("visits", fitted={"edges": [0.0, 0.0]}),
        "features.visits.fitted.edges: expected at least one finite number, strictly increasing, got [0.0,",
    ),
    (feature("visits", fitted={"edges": []}), "features.visits.fitted.edges: expected at least one"),
    (feature("watch", side="ad"), "features.watch.side: a sequence belongs to the request, expected 'query', got 'ad'"),
    (feature("watch", max_length=None), "features.watch.max_length: required for kind 'sequence', got null"),
    (feature("watch", fields=None), "features.watch.fields: required for kind 'sequence', got null"),
    (feature("watch", fields={}), "features.watch.fields: expected at least one, got {}"),
    (feature("tags", fields={"a": {"kind": "age"}}), "features.tags.fields: not for kind 'multi_categorical'"),
    (watch("tag", table=None), "features.watch.fields.tag.table: required for kind 'categorical', got null"),
    (
        watch("tag", table="tags"),
        "features.watch.fields.tag.table: unknown table 'tags', expected one of 'video', 'tag', 'country'; did",
    ),
    (
        watch("tag", buckets=9),
        "features.watch.fields.tag.buckets: not for kind 'categorical', expected it to be absent, got 9",
    ),
    (watch("tag", dim=9), "features.watch.fields.tag.dim: not for kind 'categorical', expected it to be absent, got 9"),
    (watch("tag", kind="dense"), "features.watch.fields.tag.kind: expected one of 'age', 'categorical', got \"dense\""),
    (
        watch("time", table="tag"),
        "features.watch.fields.time.table: not for kind 'age', expected it to be absent, got \"tag\"",
    ),
    (watch("time", buckets=5), "features.watch.fields.time.buckets: expected 6..65536, got 5"),
    (watch("time", dim=0), "features.watch.fields.time.dim: expected 1..4096, got 0"),
    (watch("a.b", kind="age"), "features.watch.fields.a.b: 'a.b' is not a name"),
    (feature("länge", side="ad", kind="dense"), "features.länge: 'länge' is not a name, expected a letter followed by"),
    (feature("label_click", side="pair", kind="dense"), "features.label_click: 'label_click' would leak an outcome"),
    (feature("teacher_click", side="query", kind="dense"), "features.teacher_click: 'teacher_click' would leak"),
    (feature("bid", side="pair", kind="dense"), "features.bid: 'bid' has a meaning of its own in the logs"),
    (feature("status", side="ad", kind="dense"), "features.status: 'status' has a meaning of its own in the logs"),
]


@pytest.mark.parametrize(("change", "message"), MALFORMED, ids=[message[:60] for _, message in MALFORMED])
def test_a_malformed_schema_names_file_path_value_and_expectation(
    tmp_path: Path, schema_data: dict[str, Any], change: Change, message: str
) -> None:
    change(schema_data)
    path = tmp_path / "schema.yaml"
    path.write_text(yaml.safe_dump(schema_data, allow_unicode=True, sort_keys=False), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_schema(path)
    assert f"{path}: {message}" in str(caught.value).splitlines()[0]
    assert caught.value.exit_code == 2


def test_all_faults_are_told_at_once(schema_data: dict[str, Any]) -> None:
    schema_data["objectives"]["click"] = "x"
    schema_data["features"]["country"]["table"] = "y"
    with pytest.raises(ConfigError) as caught:
        parse(schema_data)
    assert [line.split(": ")[:2] for line in str(caught.value).splitlines()] == [
        ["schema.yaml", "objectives.click"],
        ["schema.yaml", "features.country.table"],
    ]


def test_a_schema_built_in_code_obeys_the_same_rules() -> None:
    with pytest.raises(ConfigError, match=r"features\.a\.table: unknown table 't'"):
        FeatureSchema(
            tasks=("click",),
            objectives={"click": "click"},
            features={"a": Feature(side="ad", kind="categorical", table="t")},
        )
