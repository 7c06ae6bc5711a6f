"""Runs and weights are exercised with both real models in their own packages; here is what goes wrong."""

from pathlib import Path

import msgspec
import pytest

from contracts.errors import ArtifactError, ConfigError, InputError, MismatchError
from contracts.schema import FeatureSchema, Table, save_schema
from modeling.run import begin_run, finish_run, read_run, read_weights


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rate: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    schema_fingerprint: str


def _schema(**table: object) -> FeatureSchema:
    data = {
        "tasks": ["click"],
        "objectives": {"click": "click"},
        "tables": {"ad": {"dim": 4, **table}},
        "features": {"ad_id": {"side": "ad", "kind": "categorical", "table": "ad"}},
    }
    return msgspec.convert(data, FeatureSchema)


@pytest.fixture
def schema() -> FeatureSchema:
    return _schema(buckets=16)


def test_a_run_is_read_as_it_was_written(tmp_path: Path, schema: FeatureSchema) -> None:
    begin_run(tmp_path / "run", schema, Config(rate=0.1))
    finish_run(tmp_path / "run", {}, Summary(schema_fingerprint=schema.fingerprint()))
    found = read_run(tmp_path / "run", Config, Summary, command="adsieve x train")
    assert found == (schema, Config(rate=0.1), Summary(schema_fingerprint=schema.fingerprint()))


def test_the_same_run_may_begin_again_but_no_other(tmp_path: Path, schema: FeatureSchema) -> None:
    begin_run(tmp_path, schema, Config(rate=0.1))
    begin_run(tmp_path, schema, Config(rate=0.1))
    with pytest.raises(InputError, match="holds a run of another schema or configuration"):
        begin_run(tmp_path, schema, Config(rate=0.2))
    with pytest.raises(InputError, match="holds a run of another schema or configuration"):
        begin_run(tmp_path, _schema(buckets=32), Config(rate=0.1))


def test_an_unfitted_schema_begins_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adsieve schema fit"):
        begin_run(tmp_path / "run", _schema(max_values=8), Config(rate=0.1))
    assert not (tmp_path / "run").exists()


def test_a_run_without_its_summary_has_not_finished(tmp_path: Path, schema: FeatureSchema) -> None:
    begin_run(tmp_path, schema, Config(rate=0.1))
    with pytest.raises(InputError, match="no finished run here .* run `adsieve x train --out"):
        read_run(tmp_path, Config, Summary, command="adsieve x train")


def test_a_schema_that_changed_since_is_refused(tmp_path: Path, schema: FeatureSchema) -> None:
    begin_run(tmp_path, schema, Config(rate=0.1))
    finish_run(tmp_path, {}, Summary(schema_fingerprint=schema.fingerprint()))
    changed = msgspec.structs.replace(schema, tables={"ad": Table(dim=8, buckets=16)})
    save_schema(changed, tmp_path / "schema.yaml")
    with pytest.raises(MismatchError, match=r"schema\.yaml has changed since the run"):
        read_run(tmp_path, Config, Summary, command="adsieve x train")


def test_damaged_files_of_a_run_are_named(tmp_path: Path, schema: FeatureSchema) -> None:
    begin_run(tmp_path, schema, Config(rate=0.1))
    finish_run(tmp_path, {}, Summary(schema_fingerprint=schema.fingerprint()))
    for file in ("run.json", "weights.safetensors"):
        (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:5])
    with pytest.raises(ArtifactError, match=r"run\.json: not the summary of a run"):
        read_run(tmp_path, Config, Summary, command="adsieve x train")
    with pytest.raises(ArtifactError, match=r"weights\.safetensors: not the weights of a run"):
        read_weights(tmp_path)
