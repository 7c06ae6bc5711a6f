"""Distillation on a small log: it learns, resumes, weighs, and refuses what must not be learned from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from contracts.errors import ConfigError, InputError, LogError
from contracts.metrics import bernoulli_kl
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from distill.config import DistillConfig
from distill.run import Run, load_run
from distill.train import forward, train_student
from modeling.batches import gather
from modeling.examples import Examples

Alter = Callable[[Callable[[pa.Table], pa.Table]], LogPaths]


def _set(table: pa.Table, column: str, values: list) -> pa.Table:
    index = table.schema.get_field_index(column)
    return table.set_column(index, column, pa.array(values, table.schema.field(column).type))


def _logits(run: Run, examples: Examples) -> np.ndarray:
    with torch.no_grad():
        return forward(run.model, gather(examples, np.arange(len(examples)))).numpy()


def test_the_student_comes_close_to_the_teacher(run: Run, examples: Examples) -> None:
    student = _logits(run, examples)
    for head in range(2):
        teacher = examples.teacher[:, head]
        mean = np.full(
            len(teacher), np.log(np.mean(1 / (1 + np.exp(-teacher))) / (1 - np.mean(1 / (1 + np.exp(-teacher)))))
        )
        assert bernoulli_kl(teacher, student[:, head]) < 0.1 * bernoulli_kl(teacher, mean)


def test_summary_says_what_was_trained(run: Run, examples: Examples, make_log: ModuleType) -> None:
    summary = run.summary
    assert summary.teacher_version == make_log.TEACHER
    assert summary.scenario == "shopping"
    assert summary.watermark == examples.watermark.isoformat()
    assert 0.75 * len(examples) < summary.pairs < 0.85 * len(examples)
    assert set(summary.metrics["validation_kl"]) == {"click", "conversion"}
    assert summary.history[-1]["loss"] < summary.history[0]["loss"]


def test_a_loaded_run_equals_the_trained_one(run: Run, examples: Examples) -> None:
    loaded = load_run(run.path)
    assert loaded.config == run.config
    assert loaded.summary == run.summary
    np.testing.assert_array_equal(_logits(loaded, examples), _logits(run, examples))


def test_the_same_call_again_gives_the_same_run(
    run: Run, schema: FeatureSchema, log: LogPaths, config: DistillConfig, examples: Examples
) -> None:
    again = train_student(schema, log, run.path, config, scenario="shopping")
    np.testing.assert_array_equal(_logits(again, examples), _logits(run, examples))


def test_early_stopping_keeps_the_best_validation(
    schema: FeatureSchema, log: LogPaths, config: DistillConfig, tmp_path: Path
) -> None:
    hasty = msgspec.structs.replace(config.loop, epochs=60, learning_rate=0.1, patience=2)
    run = train_student(schema, log, tmp_path / "run", msgspec.structs.replace(config, loop=hasty), scenario="shopping")
    losses = {look["step"]: look["loss"] for look in run.summary.history}
    assert run.summary.steps["kept"] == min(losses, key=lambda step: losses[step])
    assert len(losses) < 60


def test_a_run_of_another_configuration_is_not_overwritten(
    run: Run, schema: FeatureSchema, log: LogPaths, config: DistillConfig
) -> None:
    with pytest.raises(InputError, match="holds a run of another schema or configuration"):
        train_student(schema, log, run.path, msgspec.structs.replace(config, seed=2), scenario="shopping")


def test_a_run_of_another_scenario_is_not_continued(
    run: Run, schema: FeatureSchema, log: LogPaths, config: DistillConfig
) -> None:
    with pytest.raises(InputError, match="holds checkpoints of a run with another configuration or other data"):
        train_student(schema, log, run.path, config, scenario="standard")


def test_unscored_rows_are_refused(
    altered_log: Alter, schema: FeatureSchema, config: DistillConfig, tmp_path: Path
) -> None:
    log = altered_log(lambda table: _set(table, "teacher_click", [None, *table["teacher_click"].to_pylist()[1:]]))
    # the altered row is the first of the last part, of a request of shopping
    with pytest.raises(LogError, match=r"candidates: 1 of [\d,]+ pairs of scenario shopping have no teacher logit"):
        train_student(schema, log, tmp_path / "run", config, scenario="shopping")


def test_two_teachers_are_refused(
    altered_log: Alter, schema: FeatureSchema, config: DistillConfig, tmp_path: Path
) -> None:
    log = altered_log(lambda table: _set(table, "teacher_version", ["heavy-all-another"] * len(table)))
    with pytest.raises(
        LogError, match="several teachers never train together, teacher_version is heavy-all-01.*, heavy-all-an"
    ):
        train_student(schema, log, tmp_path / "run", config, scenario="shopping")


def test_a_log_that_no_teacher_scored_is_refused(
    altered_log: Alter, schema: FeatureSchema, config: DistillConfig, tmp_path: Path
) -> None:
    scored = altered_log(lambda table: table)
    table = pq.read_table(scored.candidates).drop_columns(["teacher_click", "teacher_conversion", "teacher_version"])
    pq.write_table(table, tmp_path / "plain.parquet")
    log = replace(scored, candidates=str(tmp_path / "plain.parquet"))
    with pytest.raises(LogError, match=r"column teacher_click is missing, .* run `adsieve heavy score`"):
        train_student(schema, log, tmp_path / "run", config, scenario="shopping")


def test_unknown_scenario_is_refused(
    log: LogPaths, schema: FeatureSchema, config: DistillConfig, tmp_path: Path
) -> None:
    with pytest.raises(LogError, match="no request of scenario nowhere"):
        train_student(schema, log, tmp_path / "run", config, scenario="nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_weights": {"clik": 1.0}}, "head_weights: expected some of click, conversion, got 'clik'"),
        (
            {"stage_weights": {"winners": 1.0}},
            "stage_weights: expected some of eligible, candidate, winner, got 'winners'",
        ),
        ({"validation_share": 1.0}, r"validation_share: expected a number in \[0, 1\), got 1.0"),
    ],
)
def test_impossible_configurations_are_refused(
    change: dict, message: str, log: LogPaths, schema: FeatureSchema, config: DistillConfig, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_student(schema, log, tmp_path, msgspec.structs.replace(config, **change), scenario="shopping")


def test_an_unfinished_run_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no finished run here .* run `adsieve distill train"):
        load_run(tmp_path)
