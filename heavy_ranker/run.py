"""Runs of the heavy ranker: what a finished one says of itself, and how it is opened; modeling/run.py has the files."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from contracts.bundle import WEIGHTS_FILE
from contracts.schema import FeatureSchema
from heavy_ranker.build import build_ranker, model_sides, resolve_groups
from heavy_ranker.config import HeavyConfig
from heavy_ranker.flops import Flops
from heavy_ranker.model import HeavyModel
from modeling.model_memory import require_memory
from modeling.run import read_run, read_weights
from modeling.tables import FeatureTables
from modeling.warm_report import WarmReport
from modeling.weights import load_weights


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished run came to.

    Args:
        schema_fingerprint: Of the schema trained with.
        start: Only requests not before this time were read; None for all.
        end: Only requests before this time were read; None for all.
        watermark: Time of the latest impression trained on, ISO 8601 UTC.
        impressions: Trained on.
        parameters: Dense ones and those in tables.
        flops: Of a forward pass: ``alone``, ``request`` and ``ad`` (heavy_ranker/flops.py).
        metrics: On the validation part, by task; empty without one.
        history: Losses of each validation.
        warm_start: What was carried over from another model; None for a run that began with fresh weights.
    """

    schema_fingerprint: str
    start: datetime | None
    end: datetime | None
    watermark: str
    impressions: int
    parameters: dict[str, int]
    flops: Flops | None = None
    metrics: dict[str, Any]
    history: list[dict[str, Any]]
    warm_start: WarmReport | None = None


@dataclass(frozen=True)
class Run:
    """A finished run, its model in evaluation mode."""

    path: Path
    schema: FeatureSchema
    config: HeavyConfig
    model: HeavyModel
    summary: RunSummary


def with_groups(schema: FeatureSchema, config: HeavyConfig) -> HeavyConfig:
    """The configuration with its token groups resolved, as a run and a bundle keep it.

    Raises:
        ConfigError: The schema is not fitted, or the sizes do not fit it or this machine's memory; before a run begins
            or a log is read.
    """
    schema.require_fitted()
    model = msgspec.structs.replace(config.model, groups=resolve_groups(schema, config.model))
    with torch.device("meta"):  # shapes alone: no memory, no random numbers
        require_memory(build_ranker(schema, model), schema, model_sides(schema))
    return msgspec.structs.replace(config, model=model)


def build_model(schema: FeatureSchema, config: HeavyConfig) -> HeavyModel:
    """A model with fresh weights, the same for the same seed. Sets torch's global seed."""
    torch.manual_seed(config.seed)
    tables = FeatureTables(
        schema,
        model_sides(schema),
        pool_sequences=False,
        learning_rate=config.table_learning_rate,
        init=config.table_init,
        seed=config.seed,
    )
    return HeavyModel(tables, build_ranker(schema, config.model))


def load_run(path: Path) -> Run:
    """Open a finished run.

    Raises:
        InputError: The directory holds no finished run.
        MismatchError: Weights, schema and configuration do not belong together.
    """
    path = Path(path)
    schema, config, summary = read_run(path, HeavyConfig, RunSummary, command="adsieve heavy train")
    model = build_model(schema, config)
    load_weights(model, read_weights(path), source=path / WEIGHTS_FILE)
    return Run(path, schema, config, model.eval(), summary)
