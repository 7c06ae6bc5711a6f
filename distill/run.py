"""A distillation run on disk: the schema and configuration that made it, its weights, and what came out.

A run directory holds ``schema.yaml``, ``config.json``, ``examples/`` (the encoded log), ``checkpoints/``,
``weights.safetensors`` and, last, ``run.json``: a run without it has not finished.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import load_file, save_file

from contracts.artifact import write_json
from contracts.bundle import SCHEMA_FILE, WEIGHTS_FILE
from contracts.config import load_config
from contracts.errors import InputError, MismatchError
from contracts.schema import FeatureSchema, load_schema, save_schema
from distill.config import DistillConfig
from towers.build import build_two_tower
from towers.two_tower import TwoTower
from towers.weights import load_weights, model_weights

CONFIG_FILE, SUMMARY_FILE, EXAMPLES = "config.json", "run.json", "examples"


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished run came to.

    Args:
        scenario: That the student was distilled for.
        schema_fingerprint: Of the schema trained with.
        teacher_version: The series of teacher logits that it was distilled from.
        watermark: Time of the latest request trained on or validated with, ISO 8601 UTC.
        pairs: Trained on.
        steps: Of training, and of the weights that were kept.
        metrics: KL of each head on the validation part; empty without one.
        history: Training loss and validation KL over time.
    """

    scenario: str
    schema_fingerprint: str
    teacher_version: str
    watermark: str
    pairs: int
    steps: dict[str, int]
    metrics: dict[str, Any]
    history: list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """A finished run, its model in evaluation mode."""

    path: Path
    schema: FeatureSchema
    config: DistillConfig
    model: TwoTower
    summary: RunSummary


def begin_run(path: Path, schema: FeatureSchema, config: DistillConfig) -> None:
    """Write what the run is made of.

    Raises:
        ConfigError: The schema is not fitted.
        InputError: The directory holds a run of another schema or configuration.
    """
    schema.require_fitted()
    path.mkdir(parents=True, exist_ok=True)
    if (path / CONFIG_FILE).exists():
        earlier = load_config(path / CONFIG_FILE, DistillConfig), load_schema(path / SCHEMA_FILE).fingerprint()
        if earlier != (config, schema.fingerprint()):
            raise InputError(f"{path}: holds a run of another schema or configuration; choose another directory")
        return
    save_schema(schema, path / SCHEMA_FILE)
    write_json(path / CONFIG_FILE, config)


def build_student(schema: FeatureSchema, config: DistillConfig) -> TwoTower:
    """A student with fresh weights, the same for the same seed."""
    return build_two_tower(schema, config.towers, table_learning_rate=config.table_learning_rate, seed=config.seed)


def finish_run(path: Path, model: TwoTower, summary: RunSummary) -> None:
    """Write weights and summary of a run that has ended."""
    partial = path / f".{WEIGHTS_FILE}"
    save_file(model_weights(model), partial)
    partial.replace(path / WEIGHTS_FILE)
    write_json(path / SUMMARY_FILE, summary)


def load_run(path: Path) -> Run:
    """Open a finished run.

    Raises:
        InputError: The directory holds no finished run.
        MismatchError: Weights, schema and configuration do not belong together.
    """
    path = Path(path)
    if not (path / SUMMARY_FILE).exists():
        raise InputError(f"{path}: no finished run here (no {SUMMARY_FILE}); run `adsieve distill train --out {path}`")
    schema, config = load_schema(path / SCHEMA_FILE), load_config(path / CONFIG_FILE, DistillConfig)
    summary = msgspec.json.decode((path / SUMMARY_FILE).read_bytes(), type=RunSummary)
    if summary.schema_fingerprint != schema.fingerprint():
        raise MismatchError(f"{path}: {SCHEMA_FILE} has changed since the run; train again")
    model = build_student(schema, config)
    load_weights(model, load_file(path / WEIGHTS_FILE), source=path / WEIGHTS_FILE)
    return Run(path, schema, config, model.eval(), summary)
