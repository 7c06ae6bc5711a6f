"""Teacher-scored pairs of one scenario, what each of them weighs, and their split by time.

Shapes: N pairs, T tasks.
"""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from contracts.errors import LogError
from contracts.records import STAGES, LogPaths
from contracts.schema import FeatureSchema
from distill.config import DistillConfig
from modeling.examples import Examples, encode_log

PROPENSITY = "explore_propensity"
_NO_TEACHER = "no teacher"


def read_scored(
    schema: FeatureSchema,
    log: LogPaths,
    cache: Path,
    *,
    scenario: str | tuple[str, ...],
    start: datetime | None = None,
    end: datetime | None = None,
) -> Examples:
    """Every pair of one or several scenarios' requests with ``start <= event_time < end``, each with teacher logits.

    Args:
        schema: A fitted schema.
        log: Its datasets, with the scored copy of the candidates.
        cache: Directory that keeps the encoded log; a second call maps it.

    Raises:
        LogError: A pair has no teacher logit, several teachers scored the log, or a scenario has no pair.
    """
    examples = encode_log(schema, log, cache, teacher=True, labels=False, scenario=scenario, start=start, end=end)
    names = scenario if isinstance(scenario, str) else " and ".join(scenario)
    unscored = examples.summary.dropped.get(_NO_TEACHER, 0)
    if unscored:
        raise LogError(
            f"{log.candidates}: {unscored:,} of {unscored + len(examples):,} pairs of scenario {names} have no "
            "teacher logit for every task; run `adsieve heavy score` on the whole period, or narrow it by --from and "
            "--until"
        )
    if not isinstance(scenario, str):
        _check_scenarios(examples, scenario)
    return examples


def _check_scenarios(examples: Examples, wanted: tuple[str, ...]) -> None:
    codes = np.unique(np.asarray(examples.scenario)[examples.request_row])
    lacking = sorted(set(wanted) - {examples.summary.scenario_names[code] for code in codes})
    if lacking:
        raise LogError(
            f"{examples.log.requests}: scenario {lacking[0]} has no pair to learn from in this period",
            next_step="choose --from and --until so that its requests lie between them, or another --scenario",
        )


def weighted(examples: Examples, config: DistillConfig) -> Examples:
    """The examples weighted by what each pair counts, scaled to a mean of 1 so that rates keep their meaning.

    Raises:
        LogError: As of :func:`pair_weights`, or labels are to count and no winner has one.
    """
    if config.label_weight > 0:
        _check_labels(examples)
    weights = pair_weights(examples, config)
    return replace(examples, weight=weights / weights.mean())


def _check_labels(examples: Examples) -> None:
    known = ~np.isnan(examples.labels[np.asarray(examples.stage) == STAGES.index("winner")])
    if not known.any():
        columns = ", ".join(f"label_{task}" for task in examples.summary.tasks)
        raise LogError(f"{examples.log.candidates}: no winner has a value in {columns}, needed for label_weight")


def pair_weights(examples: Examples, config: DistillConfig) -> np.ndarray:
    """What each pair counts: sample weight times stage weight times, where asked, inverse propensity; float32 [N].

    Raises:
        LogError: Every pair weighs nothing, or a propensity is not in (0, 1].
    """
    by_stage = np.array([config.stage_weights.get(stage, 1.0) for stage in STAGES], np.float32)
    weights = np.asarray(examples.weight) * by_stage[examples.stage]
    if config.propensity_weights:
        weights = weights * _inverse_propensities(examples, config.max_propensity_weight)
    if not weights.sum() > 0:
        raise LogError(f"{examples.log.candidates}: every pair weighs 0; see sample_weight and stage_weights")
    return weights.astype(np.float32)


def _inverse_propensities(examples: Examples, limit: float) -> np.ndarray:
    """``1 / propensity`` of explored ads, cut at ``limit``, and 1 of all others; float32 [N]."""
    table = examples.columns("candidates", [PROPENSITY])
    if PROPENSITY not in table.schema.names:
        raise LogError(f"{examples.log.candidates}: column {PROPENSITY} is missing, needed for propensity_weights")
    propensity = table[PROPENSITY].to_numpy(zero_copy_only=False).astype(np.float32)
    known = ~np.isnan(propensity)
    outside = known & ~((propensity > 0) & (propensity <= 1))
    if outside.any():
        value = propensity[outside][0]
        raise LogError(f"{examples.log.candidates}: column {PROPENSITY} holds {value}, expected a value in (0, 1]")
    inverse = np.ones(len(propensity), np.float32)
    inverse[known] = np.minimum(1 / propensity[known], limit)
    return inverse
