"""Finds the chain of tasks among the outcomes of a log, and what its bids pay for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from adlogs.infer_source import InferSource
from contracts.errors import LogError
from contracts.records import plain_text

_IMPRESSION = "impression"


@dataclass
class TaskGuess:
    """Tasks and objectives of the proposal.

    Args:
        tasks: The chain.
        objectives: To a task, or None for the impression.
        comments: Of tasks and objectives, by name.
        left_out: Outcomes that fit no chain, with the reason.
        doubtful: Objectives that were guessed.
    """

    tasks: list[str] = field(default_factory=list)
    objectives: dict[str, str | None] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)


def guess_tasks(source: InferSource, path: object) -> TaskGuess:
    """The most frequent outcome first, then each that has happened only where the one before had.

    Raises:
        LogError: No outcome is known.
    """
    found = TaskGuess()
    rates = {task: _rate(values) for task, values in source.outcomes.items()}
    for task in sorted(rates, key=lambda name: (-np.nan_to_num(rates[name]), name)):
        _add(found, task, rates[task], source.outcomes)
    if not found.tasks:
        empty = ", ".join(source.outcomes)
        told = f"its outcomes {empty} have no row with 0 and 1" if empty else "no column is an outcome"
        raise LogError(f"{path}: {told}, expected label_TASK such as label_click: 0 or 1, null where it is not known")
    found.objectives = {task: task for task in found.tasks}
    for name in sorted(_named_objectives(source) - set(found.tasks)):
        found.objectives[name] = None
        if name != _IMPRESSION:
            found.doubtful.add(name)
            found.comments[name] = f"check: bids name the objective {name!r}; which task does it pay for?"
    return found


def _add(found: TaskGuess, task: str, rate: float, outcomes: Mapping[str, np.ndarray]) -> None:
    values = outcomes[task]
    known = int((~np.isnan(values)).sum())
    if not known or np.isnan(rate) or not 0 < rate < 1:
        found.left_out[task] = f"label_{task} is {'never known' if not known else f'always {rate:.0f}'} in the sample"
        return
    if found.tasks:
        before = found.tasks[-1]
        broken = int(((values == 1) & (outcomes[before] != 1)).sum())
        if broken:
            found.left_out[task] = (
                f"label_{task} is 1 in {broken:,} rows whose label_{before} is not: no link of the chain after {before}"
            )
            return
    found.tasks.append(task)
    found.comments[task] = f"{task}: 1 in {rate:.2%} of {known:,} known rows"


def _rate(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _named_objectives(source: InferSource) -> set[str]:
    names: set[str] = set()
    for side in ("pair", "ad"):
        sample = source.samples[side]
        if "objective" in sample.names:
            names |= set(pc.unique(plain_text(sample.column("objective")).drop_null()).to_pylist())
    return names
