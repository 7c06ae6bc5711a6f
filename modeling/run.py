"""A training run on disk: the schema and configuration that made it, its weights, and what came out.

A run directory holds ``schema.yaml``, ``config.json``, ``examples/`` (the encoded log), ``checkpoints/``,
``weights.safetensors`` and, last, ``run.json``: a run without it has not finished.
"""

from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from contracts.artifact import holding, write_json
from contracts.bundle import CONFIG_FILE, SCHEMA_FILE, WEIGHTS_FILE
from contracts.config import load_config
from contracts.errors import ArtifactError, InputError, MismatchError
from contracts.schema import FeatureSchema, load_schema, save_schema

SUMMARY_FILE, EXAMPLES = "run.json", "examples"


class Summary(Protocol):
    """What a finished run says of itself, at the least the fingerprint of the schema that it was trained with."""

    @property
    def schema_fingerprint(self) -> str: ...


C = TypeVar("C", bound=msgspec.Struct)
S = TypeVar("S", bound=Summary)


def begin_run(path: Path, schema: FeatureSchema, config: msgspec.Struct) -> None:
    """Write what a run is made of; the same run may begin again where it was interrupted.

    Raises:
        ConfigError: The schema is not fitted.
        InputError: The directory holds a run of another schema or configuration.
    """
    schema.require_fitted()
    path.mkdir(parents=True, exist_ok=True)
    if (path / CONFIG_FILE).exists():
        earlier = load_config(path / CONFIG_FILE, type(config)), load_schema(path / SCHEMA_FILE).fingerprint()
        if earlier != (config, schema.fingerprint()):
            raise InputError(f"{path}: holds a run of another schema or configuration; choose another directory")
        return
    save_schema(schema, path / SCHEMA_FILE)
    write_json(path / CONFIG_FILE, config)


def finish_run(path: Path, weights: dict[str, Tensor], summary: msgspec.Struct) -> None:
    """Write weights and summary of a run that has ended."""
    partial = path / f".{WEIGHTS_FILE}"
    save_file(weights, partial)
    partial.replace(path / WEIGHTS_FILE)
    write_json(path / SUMMARY_FILE, summary)


def read_run(path: Path, config_type: type[C], summary_type: type[S], *, command: str) -> tuple[FeatureSchema, C, S]:
    """Schema, configuration and summary of a finished run.

    Args:
        command: That makes such a run, for the message where there is none.

    Raises:
        InputError: The directory holds no finished run.
        ArtifactError: The summary is truncated or altered.
        MismatchError: The schema has changed since.
    """
    if not (path / SUMMARY_FILE).exists():
        found = f"no finished run here (no {SUMMARY_FILE}){holding(path)}"
        raise InputError(f"{path}: {found}; run `{command} --out {path}`")
    schema, config = load_schema(path / SCHEMA_FILE), load_config(path / CONFIG_FILE, config_type)
    try:
        summary = msgspec.json.decode((path / SUMMARY_FILE).read_bytes(), type=summary_type)
    except msgspec.DecodeError as error:
        raise ArtifactError(f"{path / SUMMARY_FILE}: not the summary of a run: {error}") from error
    if summary.schema_fingerprint != schema.fingerprint():
        raise MismatchError(f"{path}: {SCHEMA_FILE} has changed since the run; train again")
    return schema, config, summary


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a finished run.

    Raises:
        ArtifactError: The file is missing, truncated or altered.
    """
    try:
        return load_file(path / WEIGHTS_FILE)
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{path / WEIGHTS_FILE}: not the weights of a run: {error}") from error
