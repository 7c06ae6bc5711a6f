"""Runs of distillation: what a finished one says of itself, and how it is opened; modeling/run.py has the files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from contracts.bundle import WEIGHTS_FILE
from contracts.schema import FeatureSchema
from distill.config import DistillConfig
from modeling.run import read_run, read_weights
from modeling.warm_report import WarmReport
from modeling.weights import load_weights
from towers.build import build_two_tower
from towers.two_tower import TwoTower


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished run came to.

    Args:
        scenario: That the student was distilled for; several are separated by commas.
        schema_fingerprint: Of the schema trained with.
        teacher_version: The series of teacher logits that it was distilled from.
        watermark: Time of the latest request trained on or validated with, ISO 8601 UTC.
        pairs: Trained on.
        steps: Of training, and of the weights that were kept.
        metrics: KL of each head on the validation part; empty without one.
        history: Training loss and validation KL over time.
        scenarios: Of a student with domains, in the order of their numbers; empty for one scenario.
        warm_start: What was carried over from another student; None for a run that began with fresh weights.
    """

    scenario: str
    schema_fingerprint: str
    teacher_version: str
    watermark: str
    pairs: int
    steps: dict[str, int]
    metrics: dict[str, Any]
    history: list[dict[str, Any]]
    scenarios: tuple[str, ...] = ()
    warm_start: WarmReport | None = None


@dataclass(frozen=True)
class Run:
    """A finished run, its model in evaluation mode.

    Args:
        path: Of its directory.
        schema, config, model, summary: Of the student.
        folded: Whether it is one scenario's view of a run of several: the dense parameters are not those on disk then.
    """

    path: Path
    schema: FeatureSchema
    config: DistillConfig
    model: TwoTower
    summary: RunSummary
    folded: bool = False


def build_student(schema: FeatureSchema, config: DistillConfig) -> TwoTower:
    """A student with fresh weights, the same for the same seed."""
    return build_two_tower(schema, config.towers, table_learning_rate=config.table_learning_rate, seed=config.seed)


def load_run(path: Path) -> Run:
    """Open a finished run.

    Raises:
        InputError: The directory holds no finished run.
        MismatchError: Weights, schema and configuration do not belong together.
    """
    path = Path(path)
    schema, config, summary = read_run(path, DistillConfig, RunSummary, command="adsieve distill train")
    model = build_student(schema, config)
    load_weights(model, read_weights(path), source=path / WEIGHTS_FILE)
    return Run(path, schema, config, model.eval(), summary)
