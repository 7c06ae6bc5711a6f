"""A sealed bundle opens equal to what was sealed; every kind of damage is refused by name."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from contracts.bundle import Bundle, open_bundle, seal_bundle
from contracts.config import convert
from contracts.errors import ArtifactError, ConfigError, InputError, MismatchError, WrongArtifactError
from contracts.schema import FeatureSchema, Table, save_schema
from contracts.tensors import read_tensors

SCHEMA = {
    "version": 1,
    "tasks": ["click"],
    "objectives": {"click": "click"},
    "tables": {"country": {"dim": 4, "vocabulary": ["DE", "FR"]}, "video": {"dim": 4, "buckets": 64}},
    "features": {
        "country": {"side": "query", "kind": "categorical", "table": "country"},
        "video_id": {"side": "ad", "kind": "categorical", "table": "video"},
    },
}
WEIGHTS = {
    "tables.video": np.arange(256, dtype=np.float32).reshape(64, 4),
    "half": np.ones((3, 0, 2), np.float16),
    "count": np.array(7, np.int64),
}


def make_schema(**changes: object) -> FeatureSchema:
    return convert({**SCHEMA, **changes}, FeatureSchema, source="test")


def fill(directory: Path) -> None:
    save_file(WEIGHTS, directory / "weights.safetensors")
    save_file({"in.flat": np.zeros((2, 3), np.float32)}, directory / "parity.safetensors")
    for name in ("query_tower.onnx", "pin_tower.onnx"):
        (directory / name).write_bytes(b"graph of " + name.encode())


def seal(target: Path, **changes: object) -> Bundle:
    settings = {
        "kind": "two_tower",
        "scenario": "shopping",
        "schema": make_schema(),
        "config": {"head_dim": 4},
        "dims": {"head_dim": 4},
        "watermark": "2026-01-02T00:00:00+00:00",
        "metrics": {"auc": 0.7},
        "fill": fill,
    }
    return seal_bundle(target, **{**settings, **changes})


def test_an_opened_bundle_equals_the_sealed_one(tmp_path: Path) -> None:
    sealed = seal(tmp_path / "a")
    opened = open_bundle(tmp_path / "a", kind="two_tower")
    assert opened == sealed
    assert opened.schema == make_schema()
    assert opened.config == {"head_dim": 4}
    assert opened.manifest.libraries["numpy"] == np.__version__
    assert opened.manifest.version.startswith("two_tower-shopping-")
    tensors = opened.tensors()
    assert tensors.keys() == WEIGHTS.keys()
    for name, expected in WEIGHTS.items():
        assert tensors[name].dtype == expected.dtype
        np.testing.assert_array_equal(tensors[name], expected)
        assert not tensors[name].flags.writeable


def test_the_version_follows_the_content(tmp_path: Path) -> None:
    first, again, other = seal(tmp_path / "a"), seal(tmp_path / "b"), seal(tmp_path / "c", config={"head_dim": 8})
    assert first.manifest.version == again.manifest.version
    assert first.manifest.version != other.manifest.version
    everywhere = seal(tmp_path / "d", scenario=None)
    assert everywhere.manifest.version.startswith("two_tower-all-")


def test_what_cannot_be_sealed_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    unfitted = make_schema(tables={"country": {"dim": 4, "max_values": 10}, "video": {"dim": 4, "buckets": 64}})
    with pytest.raises(ConfigError, match="adsieve schema fit"):
        seal(tmp_path / "a", schema=unfitted)
    with pytest.raises(InputError, match="scenario: expected 1 to 80 ASCII letters"):
        seal(tmp_path / "a", scenario="../shopping")
    with pytest.raises(ArtifactError, match=r"a heavy bundle needs \['ads\.onnx', 'request\.onnx'\]"):
        seal(tmp_path / "a", kind="heavy")
    assert list(tmp_path.iterdir()) == []


def test_an_absent_file_of_a_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"has no file requests.jsonl; it has \['config.json'"):
        seal(tmp_path / "a").file("requests.jsonl")


@pytest.mark.parametrize("name", ["weights.safetensors", "pin_tower.onnx", "schema.yaml", "config.json"])
def test_truncated_and_altered_files_are_refused(tmp_path: Path, name: str) -> None:
    seal(tmp_path / "a")
    path = tmp_path / "a" / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(ArtifactError, match=rf"{name}: truncated or altered"):
        open_bundle(tmp_path / "a")
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactError, match=rf"{name}: wrong checksum"):
        open_bundle(tmp_path / "a")


def test_another_kind_and_another_schema_are_refused(tmp_path: Path) -> None:
    bundle = seal(tmp_path / "a")
    with pytest.raises(WrongArtifactError, match="is a bundle of kind 'two_tower', expected 'heavy'"):
        open_bundle(tmp_path / "a", kind="heavy")
    tables = {**bundle.schema.tables, "video": Table(dim=8, buckets=64)}
    other = FeatureSchema(
        tasks=bundle.schema.tasks, objectives=bundle.schema.objectives, tables=tables, features=bundle.schema.features
    )
    save_schema(other, tmp_path / "a" / "schema.yaml")
    with pytest.raises(MismatchError, match=r"schema\.yaml has fingerprint"):
        open_bundle(tmp_path / "a", verify=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc", "3 bytes are too few"),
        ((1000).to_bytes(8, "little") + b"{}", "header of 1000 bytes does not fit"),
        ((2).to_bytes(8, "little") + b"{]", "malformed safetensors header"),
        ((9).to_bytes(8, "little") + b'{"x": {}}', "malformed safetensors header"),
    ],
)
def test_malformed_tensors_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ArtifactError, match=message):
        read_tensors(tmp_path / "x")


def test_tensors_of_unknown_type_or_outside_the_file_are_refused(tmp_path: Path) -> None:
    header = b'{"x": {"dtype": "%s", "shape": [2], "data_offsets": [0, 8]}}'
    for dtype, message in ((b"BF16", "tensor x has type BF16"), (b"F32", "tensor x is truncated")):
        text = header % dtype
        (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 7)
        with pytest.raises(ArtifactError, match=message):
            read_tensors(tmp_path / "x")
