"""Distils a student for one scenario, or several together, from the teacher's scores.

A step computes the query tower once per request of the batch and the pin tower once per distinct ad, then the pairs.
Shapes: N pairs, H heads.
"""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from contracts.errors import ConfigError
from contracts.progress import tell
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from distill.batches import DayBatches
from distill.config import DistillConfig
from distill.data import read_scored, weighted
from distill.domains import RowDomains, row_domains
from distill.loss import bernoulli_kl
from distill.objective import Objective, objective
from distill.run import Run, RunSummary, build_student
from distill.warmstart import Beginning, WarmSource, begin
from modeling.batches import Batch, gather, ordered_batches
from modeling.compile import compiled, resolve_compile, step_flops
from modeling.distributed import ALONE, Ranks
from modeling.examples import Examples
from modeling.loop import TrainResult, mean_loss, train
from modeling.loop_state import too_few_steps
from modeling.profile import write_profile
from modeling.run import EXAMPLES, begin_run, finish_run, read_run
from modeling.split import split_by_time
from modeling.warm_start import WarmStart
from modeling.weights import model_weights
from towers.embedding import pair_logits
from towers.two_tower import Domains, TwoTower

Towers = Callable[[Tensor, Tensor, Domains | None], tuple[Tensor, Tensor]]
"""From the flat inputs of both sides to their embeddings."""


def train_student(
    schema: FeatureSchema,
    log: LogPaths,
    out: Path,
    config: DistillConfig,
    *,
    scenario: str | tuple[str, ...],
    start: datetime | None = None,
    end: datetime | None = None,
    ranks: Ranks = ALONE,
    warm_start: WarmSource | Beginning | None = None,
) -> Run:
    """Distil a student and leave a finished run in ``out``.

    A run that was killed goes on from its newest checkpoint when it is called again with the same arguments. Several
    processes train one student together, and each returns the run that the first has written.

    Args:
        schema: A fitted schema without pair features.
        log: Its datasets, with the scored copy of the candidates.
        out: Run directory.
        config: Towers and training.
        scenario: Whose requests are learned from; several for towers with domains, which are these.
        start: Only requests not before this time.
        end: Only requests before this time.
        ranks: The processes of the run, and which of them this is.
        warm_start: A trained student of the same sizes to begin from, or what a run that goes on began from.

    Raises:
        ConfigError: The schema is not fitted, or a head, share, side or domain does not fit.
        InputError: ``out`` holds a run of another schema, configuration or beginning.
        LogError: The log breaks its contract, has rows without a teacher, or rows of several teachers.
    """
    _check_domains(scenario, config)
    with ranks.main_first():
        begin_run(out, schema, config)
        wanted = objective(schema, config, ranks.device)
        examples = read_scored(schema, log, out / EXAMPLES, scenario=scenario, start=start, end=end)
    training, validation = split_by_time(weighted(examples, config), config.validation_share)
    model = build_student(schema, config)
    model.query_tower.heads.set_prior(_prior(training))
    warm = begin(out, warm_start, schema, config, model, ranks)
    if warm is not None and ranks.is_main:
        tell(warm.report.text())
    result = fit(model, training, validation, config, out, ranks, wanted=wanted, warm=warm)
    with ranks.main_first():
        if ranks.is_main:
            summary = RunSummary(
                scenario=scenario if isinstance(scenario, str) else ",".join(scenario),
                scenarios=() if isinstance(scenario, str) else scenario,
                schema_fingerprint=schema.fingerprint(),
                teacher_version=str(examples.teacher_version),
                watermark=examples.watermark.isoformat(),
                pairs=len(training),
                steps={"trained": result.steps, "kept": result.best_step},
                metrics={} if validation is None else {"validation_kl": _head_kl(model, validation, schema, config)},
                history=[msgspec.to_builtins(look) for look in result.history],
                warm_start=None if warm is None else warm.report,
            )
            write_profile(schema, examples, out)
            finish_run(out, model_weights(model), summary)
        else:
            summary = read_run(out, DistillConfig, RunSummary, command="adsieve distill train")[2]
    return Run(out, schema, config, model, summary)


def _check_domains(scenario: str | tuple[str, ...], config: DistillConfig) -> None:
    domains = () if isinstance(scenario, str) else scenario
    if config.towers.domains != domains:
        names = [", ".join(found) or "none" for found in (domains, config.towers.domains)]
        raise ConfigError(f"towers.domains: expected {names[0]}, the scenarios to learn together, got {names[1]}")


def fit(
    model: TwoTower,
    training: Examples,
    validation: Examples | None,
    config: DistillConfig,
    out: Path,
    ranks: Ranks = ALONE,
    *,
    wanted: Objective,
    warm: WarmStart | None = None,
) -> TrainResult:
    """Run the training loop.

    The model ends with its best weights by the objective's divergence on the validation part, or with its last.

    Args:
        wanted: What is minimised.
        warm: What the model was begun from.
    """
    source = DayBatches(training, pairs_per_batch=config.pairs_per_batch, seed=config.seed, ranks=ranks)
    domains = row_domains(training, config.towers.domains) if config.towers.domains else None
    towers = _towers(model, training, domains, config)
    began_from = [] if warm is None else [warm.version]

    def loss(batch: Batch) -> Tensor:
        return _share_of_mean(wanted.loss(forward(model, batch, domains, towers), batch), batch, ranks)

    if ranks.is_main:
        tell(too_few_steps(config.loop.epochs * len(source), lower="--pairs-per-batch"))
    return train(
        model,
        source,
        loss,
        config=config.loop,
        run_directory=out,
        validate=None if validation is None else _validator(model, validation, domains, config, ranks, wanted),
        fingerprint=msgspec.json.encode([config, training.fingerprint, *began_from]).decode(),
        title="Distilling the student",
        batch_size=config.pairs_per_batch,
        ranks=ranks,
        warm_states=None if warm is None else warm.adam,
    )


def forward(model: TwoTower, batch: Batch, domains: RowDomains | None = None, towers: Towers | None = None) -> Tensor:
    """Logits [N, H] of a batch.

    Args:
        domains: Of the rows that the batch was drawn from, for a model with domains.
        towers: The model's own ``embed_flat``, compiled.
    """
    of_batch = None if domains is None else domains.of(batch)
    embedded = (towers or model.embed_flat)(*model.look_up(batch.query, batch.ad), of_batch)
    return pair_logits(*embedded, batch.request_index, batch.ad_index)


def _towers(model: TwoTower, training: Examples, domains: RowDomains | None, config: DistillConfig) -> Towers:
    """The dense layers, compiled where that is configured, or where the run is long enough for it."""
    run_flops = 0.0
    if config.compile == "auto":
        batch = gather(training, np.arange(min(len(training), config.pairs_per_batch)))
        steps = config.loop.epochs * len(training) / len(batch)
        run_flops = steps * step_flops(lambda: forward(model, batch, domains))
    return compiled(model.embed_flat) if resolve_compile(config.compile, run_flops=run_flops) else model.embed_flat


def _share_of_mean(mean: Tensor, batch: Batch, ranks: Ranks) -> Tensor:
    """What the mean over a process's pairs adds to the mean over the pairs of all."""
    if ranks.alone:
        return mean
    return mean * (len(batch) / float(ranks.sum(torch.tensor(float(len(batch))))))


def _prior(training: Examples) -> Tensor:
    """The teacher's mean logit of each head [H]."""
    return torch.from_numpy(np.average(training.teacher, axis=0, weights=training.weight))


def _validator(
    model: TwoTower,
    validation: Examples,
    domains: RowDomains | None,
    config: DistillConfig,
    ranks: Ranks,
    wanted: Objective,
) -> Callable[[], float]:
    def loss(batch: Batch) -> Tensor:
        return _share_of_mean(wanted.divergence(forward(model, batch, domains), batch), batch, ranks)

    def validate() -> float:
        size, device = config.pairs_per_batch, ranks.device
        return mean_loss(loss, ordered_batches(validation, pairs_per_batch=size, device=device, ranks=ranks), ranks)

    return validate


@torch.no_grad()
def _head_kl(model: TwoTower, validation: Examples, schema: FeatureSchema, config: DistillConfig) -> dict[str, float]:
    domains = row_domains(validation, config.towers.domains) if config.towers.domains else None
    batches = ordered_batches(validation, pairs_per_batch=config.pairs_per_batch)
    found = [(bernoulli_kl(forward(model, batch, domains), batch.teacher), batch.weight[:, None]) for batch in batches]
    total = torch.stack([(kl * weight).sum(0) for kl, weight in found]).sum(0)
    mean = total / torch.stack([weight.sum() for _, weight in found]).sum()
    return dict(zip(schema.tasks, mean.tolist(), strict=True))
