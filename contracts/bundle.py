"""Model bundles: sealed once by training, opened by indexing and serving, verified before use.

A bundle is a directory: ``manifest.json``, ``schema.yaml`` with its fitted state, ``config.json``,
``weights.safetensors``, the ONNX graphs, ``parity.safetensors`` (real inputs and fp32 outputs), and where the model has
them ``requests.jsonl``, ``profile.json`` and ``slices.parquet``; ``READY`` comes last. Nothing in it is pickled.
"""

import hashlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from contracts.artifact import MANIFEST, FileEntry, file_entries, publishing, read_manifest, verify_files, write_json
from contracts.errors import ArtifactError, MismatchError, WrongArtifactError
from contracts.names import MadeName, check_scenario
from contracts.schema import FeatureSchema, load_schema, save_schema
from contracts.tensors import read_tensors

SCHEMA_FILE, CONFIG_FILE, WEIGHTS_FILE, PARITY_FILE = (
    "schema.yaml",
    "config.json",
    "weights.safetensors",
    "parity.safetensors",
)
GRAPHS = {"heavy": ("request.onnx", "ads.onnx"), "two_tower": ("query_tower.onnx", "pin_tower.onnx")}

_LIBRARIES = ("numpy", "pyarrow", "xxhash", "onnx", "onnxruntime", "torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu")
_VERSION_HEX = 12

Kind = Literal["heavy", "two_tower"]


class BundleManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a bundle is and what made it.

    ``version`` follows from the content. ``scenario`` is None for a heavy ranker that serves all.
    ``side_fingerprints`` maps each side to the fingerprint of its encoding. ``watermark`` is the latest moment of its
    training data, ISO 8601 UTC.
    """

    version: MadeName
    kind: Kind
    scenario: str | None = None
    tasks: list[str]
    dims: dict[str, int]
    schema_fingerprint: str
    side_fingerprints: dict[str, str]
    libraries: dict[str, str]
    watermark: str
    teacher_version: str | None = None
    metrics: dict[str, Any] = {}
    files: dict[str, FileEntry]
    created_at: str


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. Its schema is the one that the manifest's fingerprints were taken of."""

    path: Path
    manifest: BundleManifest
    schema: FeatureSchema
    config: dict[str, Any]

    def file(self, name: str) -> Path:
        """Return the path of one of its files.

        Raises:
            ArtifactError: The bundle has no such file.
        """
        if name not in self.manifest.files:
            raise ArtifactError(f"{self.path}: has no file {name}; it has {sorted(self.manifest.files)}")
        return self.path / name

    def tensors(self, name: str = WEIGHTS_FILE) -> dict[str, np.ndarray]:
        """Return the arrays of a safetensors file, memory-mapped and read-only."""
        return read_tensors(self.file(name))


def seal_bundle(
    target: Path,
    *,
    kind: Kind,
    scenario: str | None,
    schema: FeatureSchema,
    config: dict[str, Any],
    dims: Mapping[str, int],
    watermark: str,
    teacher_version: str | None = None,
    metrics: Mapping[str, Any] | None = None,
    fill: Callable[[Path], None],
) -> Bundle:
    """Write a bundle in one step: it appears whole at ``target`` or not at all.

    Args:
        target: Directory to create; it must not exist.
        schema: The fitted schema that the model was trained with.
        config: The model's configuration, plain JSON values.
        dims: Widths that a reader needs, such as ``head_dim``.
        watermark: Latest moment of the training data, ISO 8601 UTC.
        fill: Writes weights, graphs, parity tensors and what else belongs to the model into the directory it gets.

    Raises:
        InputError: ``target`` exists, or the scenario cannot be a file name.
        ConfigError: The schema is not fitted.
        ArtifactError: ``fill`` left out a file that every bundle of its kind has.
    """
    schema.require_fitted()
    if scenario is not None:
        check_scenario(scenario)
    with publishing(target) as aside:
        fill(aside)
        save_schema(schema, aside / SCHEMA_FILE)
        write_json(aside / CONFIG_FILE, config)
        entries = file_entries(aside)
        _require_files(target, kind, entries)
        manifest = BundleManifest(
            version=_version(kind, scenario, entries),
            kind=kind,
            scenario=scenario,
            tasks=list(schema.tasks),
            dims=dict(dims),
            schema_fingerprint=schema.fingerprint(),
            side_fingerprints=_side_fingerprints(schema),
            libraries=_installed_libraries(),
            watermark=watermark,
            teacher_version=teacher_version,
            metrics=dict(metrics or {}),
            files=entries,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        write_json(aside / MANIFEST, manifest)
    return open_bundle(target, kind=kind)


def open_bundle(path: Path, *, kind: Kind | None = None, verify: bool = True) -> Bundle:
    """Open a bundle after checking that it is finished, unaltered and consistent.

    Args:
        kind: Refuse a bundle of another kind.
        verify: Also compare the checksum of every file; a reader that did so a moment ago may skip it.

    Raises:
        WrongArtifactError: It is no bundle, or one of another kind.
        ArtifactError: Truncated or altered.
        MismatchError: Its schema is not the one that its manifest names.
    """
    path = Path(path)
    manifest = read_manifest(path, BundleManifest)
    if kind is not None and manifest.kind != kind:
        raise WrongArtifactError(f"{path}: is a bundle of kind {manifest.kind!r}, expected {kind!r}")
    _require_files(path, manifest.kind, manifest.files)
    if verify:
        verify_files(path, manifest.files)
    schema = load_schema(path / SCHEMA_FILE)
    if schema.fingerprint() != manifest.schema_fingerprint or _side_fingerprints(schema) != manifest.side_fingerprints:
        raise MismatchError(
            f"{path}: {SCHEMA_FILE} has fingerprint {schema.fingerprint()}, "
            f"the manifest says {manifest.schema_fingerprint}; export the model again"
        )
    config = msgspec.json.decode((path / CONFIG_FILE).read_bytes())
    return Bundle(path=path, manifest=manifest, schema=schema, config=config)


def _require_files(path: Path, kind: Kind, entries: Mapping[str, FileEntry]) -> None:
    required = (SCHEMA_FILE, CONFIG_FILE, WEIGHTS_FILE, PARITY_FILE, *GRAPHS[kind])
    lacking = sorted(set(required) - set(entries))
    if lacking:
        raise ArtifactError(f"{path}: a {kind} bundle needs {lacking}")


def _version(kind: Kind, scenario: str | None, entries: Mapping[str, FileEntry]) -> str:
    listing = "".join(f"{name} {entries[name].sha256}\n" for name in sorted(entries))
    digest = hashlib.sha256(listing.encode()).hexdigest()
    return f"{kind}-{scenario or 'all'}-{digest[:_VERSION_HEX]}"


def _side_fingerprints(schema: FeatureSchema) -> dict[str, str]:
    return {side: schema.side_fingerprint(side) for side in ("query", "ad", "pair")}


def _installed_libraries() -> dict[str, str]:
    installed = {}
    for name in _LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
