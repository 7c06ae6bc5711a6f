"""Trains a heavy ranker on the impressions of a log."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch import Tensor

from contracts.bundle import WEIGHTS_FILE
from contracts.progress import tell
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from heavy_ranker.calibration import calibrate
from heavy_ranker.config import HeavyConfig
from heavy_ranker.data import read_impressions
from heavy_ranker.evaluate import predict, task_metrics
from heavy_ranker.flops import count_flops
from heavy_ranker.loss import Reduction, impression_loss, known_weight
from heavy_ranker.model import HeavyModel, Interact
from heavy_ranker.rows import IndexedRows
from heavy_ranker.run import Run, RunSummary, build_model, with_groups
from heavy_ranker.warmstart import WarmSource, carry, with_continued_groups
from modeling.batches import Batch, ShuffledBatches, gather, ordered_batches
from modeling.compile import compiled, resolve_compile, step_flops
from modeling.distributed import ALONE, Ranks
from modeling.examples import Examples
from modeling.loop import TrainResult, mean_loss, train
from modeling.loop_state import too_few_steps
from modeling.run import EXAMPLES, begin_run, finish_run, read_run, read_weights
from modeling.split import split_by_time
from modeling.tables import dense_parameters
from modeling.warm_start import WarmStart
from modeling.weights import load_weights, model_weights

TITLE = "Training the heavy ranker"


def train_heavy(
    schema: FeatureSchema,
    log: LogPaths,
    out: Path,
    config: HeavyConfig,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    ranks: Ranks = ALONE,
    warm_start: WarmSource | None = None,
) -> Run:
    """Train on the log's winners and leave a finished run in ``out``.

    A run that was killed goes on from its newest checkpoint when it is called again with the same arguments. Several
    processes train one model together, and each returns the run that the first has written.

    Args:
        schema: A fitted schema.
        log: Its datasets.
        out: Run directory.
        config: Sizes and training.
        start: Only requests not before this time.
        end: Only requests before this time.
        ranks: The processes of the run, and which of them this is.
        warm_start: A trained model to begin from; its token groups are kept where the configuration gives none.

    Raises:
        ConfigError: The schema is not fitted, or sizes or shares do not fit.
        InputError: ``out`` holds a run of another schema or configuration.
        LogError: The log breaks its contract or has no labelled winner.
    """
    if warm_start is not None:
        config = with_continued_groups(schema, config, warm_start)
    config = with_groups(schema, config)
    with ranks.main_first():
        begin_run(out, schema, config)
        examples = read_impressions(schema, log, out / EXAMPLES, start=start, end=end)
    return train_examples(schema, examples, out, config, start=start, end=end, ranks=ranks, warm_start=warm_start)


def train_examples(
    schema: FeatureSchema,
    examples: Examples,
    out: Path,
    config: HeavyConfig,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    ranks: Ranks = ALONE,
    warm_start: WarmSource | None = None,
    title: str = TITLE,
) -> Run:
    """Train on impressions that are read already, in a run directory that has begun; as :func:`train_heavy`."""
    training, validation = split_by_time(examples, config.validation_share)
    model = build_model(schema, config)
    warm = None if warm_start is None else carry(warm_start, schema, config, model)
    if warm is not None and ranks.is_main:
        tell(warm.report.text())
    result = fit(model, training, validation, config, out, ranks, warm, title)
    with ranks.main_first():
        if ranks.is_main:
            if config.calibrate:
                calibrate(model, training)
            summary = RunSummary(
                schema_fingerprint=schema.fingerprint(),
                start=start,
                end=end,
                watermark=examples.watermark.isoformat(),
                impressions=len(training),
                parameters=count_parameters(model),
                flops=count_flops(model.ranker, schema),
                metrics={} if validation is None else _validation_metrics(model, validation, schema, config),
                history=[msgspec.to_builtins(look) for look in result.history],
                warm_start=None if warm is None else warm.report,
            )
            finish_run(out, model_weights(model), summary)
        else:
            summary = read_run(out, HeavyConfig, RunSummary, command="adsieve heavy train")[2]
            load_weights(model, read_weights(out), source=out / WEIGHTS_FILE)
    return Run(out, schema, config, model, summary)


def fit(
    model: HeavyModel,
    training: Examples,
    validation: Examples | None,
    config: HeavyConfig,
    out: Path,
    ranks: Ranks = ALONE,
    warm: WarmStart | None = None,
    title: str = TITLE,
) -> TrainResult:
    """Run the training loop; the model ends with its best weights, or its last without validation."""
    evaluated = batch_loss(model, ranks, reduction=config.loss_reduction)
    interact = _interact(model, training, config)
    source = ShuffledBatches(
        training,
        pairs_per_batch=config.batch_size,
        by="request",
        seed=config.seed,
        device=ranks.device,
        ranks=ranks,
    )
    validate = None
    if validation is not None:
        validate = _validator(evaluated, validation, config.batch_size, ranks)
    source_version = [] if warm is None else [warm.version]
    rows = int(np.asarray(training.request_row).sum())
    fingerprint = msgspec.json.encode([config, len(training), rows, *source_version]).decode()
    if ranks.is_main:
        tell(too_few_steps(config.loop.epochs * len(source), lower="--batch-size"))
    return train(
        model,
        source,
        batch_loss(model, ranks, reduction=config.loss_reduction, interact=interact),
        config=config.loop,
        run_directory=out,
        validate=validate,
        before_epoch=_table_renewal(model, config, warm) if config.fresh_tables else None,
        fingerprint=fingerprint,
        title=title,
        batch_size=config.batch_size,
        ranks=ranks,
        warm_states=None if warm is None else warm.adam,
    )


def batch_loss(
    model: HeavyModel,
    ranks: Ranks = ALONE,
    *,
    reduction: Reduction = "mean",
    interact: Interact | None = None,
) -> Callable[[Batch], Tensor]:
    """The loss of one batch, or this process's share of it; ``interact`` is the model's own or its compiled form."""
    dense = interact or model.interact

    def loss(batch: Batch) -> Tensor:
        rows = IndexedRows(batch.request_index, len(batch.query.ids))
        logits = dense(model.look_up(batch.sides()), rows, batch.ad_index)
        totals = None if ranks.alone else ranks.sum(known_weight(batch.labels, batch.weight))
        return impression_loss(logits, batch.labels, batch.weight, totals, reduction=reduction)

    return loss


def _interact(model: HeavyModel, training: Examples, config: HeavyConfig) -> Interact:
    """The model's dense layers, compiled where that is configured, or where the run is long enough for it."""
    run_flops = _run_flops(model, training, config) if config.compile == "auto" else 0.0
    return compiled(model.interact) if resolve_compile(config.compile, run_flops=run_flops) else model.interact


def _run_flops(model: HeavyModel, training: Examples, config: HeavyConfig) -> float:
    """FLOPs of all passes forward, and of backward ones at twice as many, judged by the first batch of the log."""
    batch = gather(training, np.arange(min(len(training), config.batch_size)))
    flops = step_flops(lambda: model(batch.sides(), batch.request_index, batch.ad_index))
    return flops * len(training) / len(batch) * config.loop.epochs


def count_parameters(model: HeavyModel) -> dict[str, int]:
    """Parameters of dense layers, and those in tables."""
    dense = sum(parameter.numel() for parameter in dense_parameters(model).values())
    tables = sum(values.size for values in model.tables.export_tables().values())
    return {"dense": dense, "tables": tables}


def _table_renewal(model: HeavyModel, config: HeavyConfig, warm: WarmStart | None) -> Callable[[int], None]:
    """Before each epoch but the first: tables as the run began with them, drawn anew where nothing was carried over."""
    if warm is not None and config.loop.epochs > 1:
        return _back_to_beginning(model)

    def renew(epoch: int) -> None:
        if epoch > 0:
            model.tables.reinitialise(model.tables.stack.tables, seed=config.seed + epoch)

    return renew


def _back_to_beginning(model: HeavyModel) -> Callable[[int], None]:
    matrices = {name: values.clone() for name, values in model.tables.matrices().items()}
    accumulated = {name: values.clone() for name, values in model.tables.optimizer_state().items()}

    def put_back(epoch: int) -> None:
        if epoch > 0:
            model.tables.load_matrices(matrices)
            model.tables.load_optimizer_state(accumulated)

    return put_back


def _validator(
    loss_fn: Callable[[Batch], Tensor], validation: Examples, batch_size: int, ranks: Ranks
) -> Callable[[], float]:
    def validate() -> float:
        batches = ordered_batches(validation, pairs_per_batch=batch_size, device=ranks.device, ranks=ranks)
        return mean_loss(loss_fn, batches, ranks)

    return validate


def _validation_metrics(
    model: HeavyModel, validation: Examples, schema: FeatureSchema, config: HeavyConfig
) -> dict[str, Any]:
    logits = predict(model, validation, batch_size=config.batch_size)
    return task_metrics(schema.tasks, logits, np.asarray(validation.labels), np.asarray(validation.weight))
