"""A training run on disk: the schema and configuration that made it, its weights, and what came out.

A run directory holds ``schema.yaml``, ``config.json``, ``examples/`` (the encoded log), ``checkpoints/``,
``weights.safetensors`` and, last, ``run.json``: a run without it has not finished.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from contracts.artifact import write_json
from contracts.bundle import SCHEMA_FILE, WEIGHTS_FILE
from contracts.config import load_config
from contracts.errors import InputError, MismatchError
from contracts.schema import FeatureSchema, load_schema, save_schema
from heavy_ranker.build import build_ranker, model_sides, resolve_groups
from heavy_ranker.config import HeavyConfig
from heavy_ranker.model import HeavyModel
from modeling.tables import FeatureTables

CONFIG_FILE, SUMMARY_FILE, EXAMPLES = "config.json", "run.json", "examples"
_RANKER = "ranker."


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished run came to.

    Args:
        schema_fingerprint: Of the schema trained with.
        start: Only requests not before this time were read; None for all.
        end: Only requests before this time were read; None for all.
        watermark: Time of the latest impression trained on, ISO 8601 UTC.
        impressions: Trained on.
        parameters: Dense ones and those in tables.
        metrics: On the validation part, by task; empty without one.
        history: Losses of each validation.
    """

    schema_fingerprint: str
    start: datetime | None
    end: datetime | None
    watermark: str
    impressions: int
    parameters: dict[str, int]
    metrics: dict[str, Any]
    history: list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """A finished run, its model in evaluation mode."""

    path: Path
    schema: FeatureSchema
    config: HeavyConfig
    model: HeavyModel
    summary: RunSummary


def begin_run(path: Path, schema: FeatureSchema, config: HeavyConfig) -> HeavyConfig:
    """Write what the run is made of; the configuration returned has its token groups resolved.

    Raises:
        InputError: The directory holds a run of another schema or configuration.
    """
    schema.require_fitted()
    model = msgspec.structs.replace(config.model, groups=resolve_groups(schema, config.model))
    resolved = msgspec.structs.replace(config, model=model)
    path.mkdir(parents=True, exist_ok=True)
    if (path / CONFIG_FILE).exists():
        earlier = load_config(path / CONFIG_FILE, HeavyConfig), load_schema(path / SCHEMA_FILE).fingerprint()
        if earlier != (resolved, schema.fingerprint()):
            raise InputError(f"{path}: holds a run of another schema or configuration; choose another directory")
        return resolved
    save_schema(schema, path / SCHEMA_FILE)
    write_json(path / CONFIG_FILE, msgspec.to_builtins(resolved))
    return resolved


def build_model(schema: FeatureSchema, config: HeavyConfig) -> HeavyModel:
    """A model with fresh weights, the same for the same seed. Sets torch's global seed."""
    torch.manual_seed(config.seed)
    tables = FeatureTables(
        schema,
        model_sides(schema),
        pool_sequences=False,
        learning_rate=config.table_learning_rate,
        seed=config.seed,
    )
    return HeavyModel(tables, build_ranker(schema, config.model))


def finish_run(path: Path, model: HeavyModel, summary: RunSummary) -> None:
    """Write weights and summary of a run that has ended."""
    partial = path / f".{WEIGHTS_FILE}"
    save_file(model_weights(model), partial)
    partial.replace(path / WEIGHTS_FILE)
    write_json(path / SUMMARY_FILE, summary)


def model_weights(model: HeavyModel) -> dict[str, Tensor]:
    """``tables.<name>`` and ``ranker.<parameter>``, the content of ``weights.safetensors``."""
    tables = {name: torch.from_numpy(values) for name, values in model.tables.export_tables().items()}
    ranker = {
        f"{_RANKER}{name}": value.detach().cpu().contiguous() for name, value in model.ranker.state_dict().items()
    }
    return tables | ranker


def load_run(path: Path) -> Run:
    """Open a finished run.

    Raises:
        InputError: The directory holds no finished run.
        MismatchError: Weights and configuration do not belong together.
    """
    path = Path(path)
    if not (path / SUMMARY_FILE).exists():
        raise InputError(f"{path}: no finished run here (no {SUMMARY_FILE}); run `adsieve heavy train --out {path}`")
    schema, config = load_schema(path / SCHEMA_FILE), load_config(path / CONFIG_FILE, HeavyConfig)
    summary = msgspec.json.decode((path / SUMMARY_FILE).read_bytes(), type=RunSummary)
    if summary.schema_fingerprint != schema.fingerprint():
        raise MismatchError(f"{path}: {SCHEMA_FILE} has changed since the run; train again")
    model = build_model(schema, config)
    load_weights(model, load_file(path / WEIGHTS_FILE), source=path / WEIGHTS_FILE)
    return Run(path, schema, config, model.eval(), summary)


def load_weights(model: HeavyModel, tensors: dict[str, Tensor], *, source: Path) -> None:
    """Put back what :func:`model_weights` gave."""
    ranker = {name.removeprefix(_RANKER): value for name, value in tensors.items() if name.startswith(_RANKER)}
    expected = {name: value.shape for name, value in model.ranker.state_dict().items()}
    found = {name: value.shape for name, value in ranker.items()}
    if expected != found:
        names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise MismatchError(f"{source}: is of another model, these tensors differ: {', '.join(names[:10])}")
    model.ranker.load_state_dict(ranker)
    model.tables.import_tables({name: value.numpy() for name, value in tensors.items() if name.startswith("tables.")})
