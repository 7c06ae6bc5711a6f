"""Quality of a heavy ranker on the impressions of a time window, beside the truth where a simulated log has it."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from msgspec import to_builtins

from contracts.metrics import auc, calibration_ratio, log_loss, normalised_entropy
from contracts.probability import sigmoid
from contracts.progress import progress
from contracts.records import LogPaths, read_table
from heavy_ranker.data import read_impressions
from heavy_ranker.flops import count_flops
from heavy_ranker.model import HeavyModel
from heavy_ranker.run import Run
from modeling.batches import ordered_batches
from modeling.examples import Examples
from modeling.run import EXAMPLES

METRICS = ("log_loss", "normalised_entropy", "auc", "calibration")


@torch.no_grad()
def predict(model: HeavyModel, examples: Examples, *, batch_size: int = 4096) -> np.ndarray:
    """Per-impression logits of all pairs, float32 [B, K], in their order."""
    model.eval()
    logits = []
    with progress("Predicting", total=len(examples)) as advance:
        for batch in ordered_batches(examples, pairs_per_batch=batch_size):
            logits.append(model(batch.sides(), batch.request_index, batch.ad_index).numpy())
            advance(len(batch))
    return np.concatenate(logits)


def evaluate_run(
    run: Run,
    log: LogPaths,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Metrics of each task on labelled winners of a window: of all, and of each scenario.

    Args:
        run: A finished run.
        log: With or without ``truth/``; with it, the metrics of the true probabilities stand beside.
        cache: Keeps the encoded log; the run's own directory by default.
    """
    examples = read_impressions(run.schema, log, cache or run.path / EXAMPLES, start=start, end=end)
    logits = predict(run.model, examples)
    truth = true_probabilities(log, examples, run.schema.tasks)
    slices = {"all": np.ones(len(examples), bool)} | _scenario_masks(examples)
    return {
        "rows": len(examples),
        "watermark": examples.watermark.isoformat(),
        "flops": to_builtins(count_flops(run.model.ranker, run.schema)),
        "slices": {
            name: _slice_metrics(run.schema.tasks, examples.select(np.flatnonzero(mask)), logits[mask], truth, mask)
            for name, mask in slices.items()
        },
    }


def task_metrics(
    tasks: Sequence[str], logits: np.ndarray, labels: np.ndarray, weight: np.ndarray
) -> dict[str, dict[str, float]]:
    """Log loss, normalised entropy, AUC and calibration of each task over its known labels.

    Args:
        logits: [B, K].
        labels: [B, K], NaN where unknown.
        weight: [B].
    """
    return _metrics(tasks, sigmoid(logits), labels, weight)


def _metrics(
    tasks: Sequence[str], predicted: np.ndarray, labels: np.ndarray, weight: np.ndarray
) -> dict[str, dict[str, float]]:
    found = {}
    for index, task in enumerate(tasks):
        known = ~np.isnan(labels[:, index])
        columns = labels[known, index], predicted[known, index], weight[known]
        values = [float(metric(*columns)) for metric in (log_loss, normalised_entropy, auc, calibration_ratio)]
        counts = {"rows": int(known.sum()), "positives": int(columns[0].sum())}
        found[task] = dict(zip(METRICS, values, strict=True)) | counts
    return found


def _slice_metrics(
    tasks: Sequence[str], examples: Examples, logits: np.ndarray, truth: np.ndarray | None, mask: np.ndarray
) -> dict[str, Any]:
    labels, weight = np.asarray(examples.labels), np.asarray(examples.weight)
    found: dict[str, Any] = {"model": task_metrics(tasks, logits, labels, weight)}
    if truth is not None:
        found["truth"] = _metrics(tasks, truth[mask], labels, weight)
    return found


def _scenario_masks(examples: Examples) -> dict[str, np.ndarray]:
    codes = np.asarray(examples.scenario)[examples.request_row]
    names = examples.summary.scenario_names
    masks = {name: codes == code for code, name in enumerate(names)}
    return {name: mask for name, mask in masks.items() if mask.any()} if len(names) > 1 else {}


def true_probabilities(log: LogPaths, examples: Examples, tasks: Sequence[str]) -> np.ndarray | None:
    """The simulation's own probabilities, float64 [B, K]; None for a log without them."""
    if log.truth is None:
        return None
    names = [f"true_{task}" for task in tasks]
    truth = read_table(log.truth, ["request_id", "ad_id", *names])
    if not set(names) <= set(truth.schema.names):
        return None
    keys = pa.table(
        {
            "request_id": examples.request_ids.take(pa.array(examples.request_row)).cast(pa.string()),
            "ad_id": examples.ad_ids.take(pa.array(examples.ad_row)).cast(pa.string()),
            "row": np.arange(len(examples)),
        }
    )
    joined = keys.join(truth, keys=["request_id", "ad_id"], join_type="left outer").sort_by("row")
    return np.stack([np.asarray(joined[name], np.float64) for name in names], axis=1)
