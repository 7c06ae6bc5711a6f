"""Distils a student for one scenario from the teacher's scores.

A step computes the query tower once per request of the batch and the pin tower once per distinct ad, then the pairs.
Shapes: N pairs, H heads.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from contracts.errors import ConfigError
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from distill.batches import DayBatches
from distill.config import DistillConfig
from distill.data import pair_weights, read_scored
from distill.loss import bernoulli_kl, distillation_loss, weighted_mean
from distill.run import Run, RunSummary, build_student
from modeling.batches import Batch, ordered_batches
from modeling.distributed import ALONE, Ranks
from modeling.examples import Examples
from modeling.loop import TrainResult, mean_loss, train
from modeling.run import EXAMPLES, begin_run, finish_run, read_run
from modeling.split import split_by_time
from modeling.weights import model_weights
from towers.two_tower import TwoTower


def train_student(
    schema: FeatureSchema,
    log: LogPaths,
    out: Path,
    config: DistillConfig,
    *,
    scenario: str,
    start: datetime | None = None,
    end: datetime | None = None,
    ranks: Ranks = ALONE,
) -> Run:
    """Distil a student and leave a finished run in ``out``.

    A run that was killed goes on from its newest checkpoint when it is called again with the same arguments. Several
    processes train one student together, and each returns the run that the first has written.

    Args:
        schema: A fitted schema without pair features.
        log: Its datasets, with the scored copy of the candidates.
        out: Run directory.
        config: Towers and training.
        scenario: Whose requests are learned from.
        start: Only requests not before this time.
        end: Only requests before this time.
        ranks: The processes of the run, and which of them this is.

    Raises:
        ConfigError: The schema is not fitted, or a head, share or side does not fit.
        InputError: ``out`` holds a run of another schema or configuration.
        LogError: The log breaks its contract, has rows without a teacher, or rows of several teachers.
    """
    with ranks.main_first():
        begin_run(out, schema, config)
        head_weights = _head_weights(schema, config)
        examples = read_scored(schema, log, out / EXAMPLES, scenario=scenario, start=start, end=end)
    training, validation = split_by_time(_weighted(examples, config), config.validation_share)
    model = build_student(schema, config)
    model.query_tower.heads.set_prior(_prior(training))
    result = fit(model, training, validation, head_weights, config, out, ranks)
    with ranks.main_first():
        if ranks.is_main:
            summary = RunSummary(
                scenario=scenario,
                schema_fingerprint=schema.fingerprint(),
                teacher_version=str(examples.teacher_version),
                watermark=examples.watermark.isoformat(),
                pairs=len(training),
                steps={"trained": result.steps, "kept": result.best_step},
                metrics={} if validation is None else {"validation_kl": _head_kl(model, validation, schema, config)},
                history=[msgspec.to_builtins(look) for look in result.history],
            )
            finish_run(out, model_weights(model), summary)
        else:
            summary = read_run(out, DistillConfig, RunSummary, command="adsieve distill train")[2]
    return Run(out, schema, config, model, summary)


def fit(
    model: TwoTower,
    training: Examples,
    validation: Examples | None,
    head_weights: Tensor,
    config: DistillConfig,
    out: Path,
    ranks: Ranks = ALONE,
) -> TrainResult:
    """Run the training loop; the model ends with its best weights by validation KL, or its last without validation."""
    source = DayBatches(training, pairs_per_batch=config.pairs_per_batch, seed=config.seed, ranks=ranks)
    head_weights = head_weights.to(ranks.device)
    validate = None
    if validation is not None:
        validate = _validator(model, validation, head_weights, config, ranks)

    def loss(batch: Batch) -> Tensor:
        mean = distillation_loss(forward(model, batch), batch.teacher, batch.weight, head_weights)
        return _share_of_mean(mean, batch, ranks)

    return train(
        model,
        source,
        loss,
        config=config.loop,
        run_directory=out,
        validate=validate,
        fingerprint=msgspec.json.encode([config, training.fingerprint]).decode(),
        title="Distilling the student",
        batch_size=config.pairs_per_batch,
        ranks=ranks,
    )


def _share_of_mean(mean: Tensor, batch: Batch, ranks: Ranks) -> Tensor:
    """What the mean over a process's pairs adds to the mean over the pairs of all."""
    if ranks.alone:
        return mean
    return mean * (len(batch) / float(ranks.sum(torch.tensor(float(len(batch))))))


def forward(model: TwoTower, batch: Batch) -> Tensor:
    """Logits [N, H] of a batch."""
    return model(batch.query, batch.ad, batch.request_index, batch.ad_index)


def _weighted(examples: Examples, config: DistillConfig) -> Examples:
    """The examples weighted by what each pair counts, scaled to a mean of 1 so that rates keep their meaning."""
    weights = pair_weights(examples, config)
    return replace(examples, weight=weights / weights.mean())


def _head_weights(schema: FeatureSchema, config: DistillConfig) -> Tensor:
    unknown = sorted(set(config.head_weights) - set(schema.tasks))
    if unknown:
        raise ConfigError(f"head_weights: expected some of {', '.join(schema.tasks)}, got {unknown[0]!r}")
    return torch.tensor([config.head_weights.get(task, 1.0) for task in schema.tasks])


def _prior(training: Examples) -> Tensor:
    """The teacher's mean logit of each head [H]."""
    return torch.from_numpy(np.average(training.teacher, axis=0, weights=training.weight))


def _validator(
    model: TwoTower, validation: Examples, head_weights: Tensor, config: DistillConfig, ranks: Ranks
) -> Callable[[], float]:
    def loss(batch: Batch) -> Tensor:
        mean = weighted_mean(bernoulli_kl(forward(model, batch), batch.teacher), batch.weight, head_weights)
        return _share_of_mean(mean, batch, ranks)

    def validate() -> float:
        size, device = config.pairs_per_batch, ranks.device
        return mean_loss(loss, ordered_batches(validation, pairs_per_batch=size, device=device, ranks=ranks), ranks)

    return validate


@torch.no_grad()
def _head_kl(model: TwoTower, validation: Examples, schema: FeatureSchema, config: DistillConfig) -> dict[str, float]:
    batches = ordered_batches(validation, pairs_per_batch=config.pairs_per_batch)
    found = [(bernoulli_kl(forward(model, batch), batch.teacher), batch.weight[:, None]) for batch in batches]
    total = torch.stack([(kl * weight).sum(0) for kl, weight in found]).sum(0)
    mean = total / torch.stack([weight.sum() for _, weight in found]).sum()
    return dict(zip(schema.tasks, mean.tolist(), strict=True))
