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
    """The longest chain of outcomes of which each happens only where the one before did; the most frequent of equals.

    Raises:
        LogError: No outcome is known.
    """
    found = TaskGuess()
    rates = {task: _rate(values) for task, values in source.outcomes.items()}
    usable = {task: values for task, values in source.outcomes.items() if 0 < rates[task] < 1}
    for task in set(rates) - set(usable):
        found.left_out[task] = f"label_{task} is {'never known' if np.isnan(rates[task]) else 'always the same'} here"
    found.tasks = _longest_chain(usable, rates)
    for task in usable:
        known = int((~np.isnan(usable[task])).sum())
        found.comments[task] = f"{task}: 1 in {rates[task]:.2%} of {known:,} known rows"
        if task not in found.tasks:
            found.left_out[task] = _why_not(task, found.tasks, usable, rates)
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


def _longest_chain(outcomes: Mapping[str, np.ndarray], rates: Mapping[str, float]) -> list[str]:
    """Chains that end in each outcome, from the most frequent on; the best of those that it may follow, and itself."""
    chains: dict[str, list[str]] = {}
    for task in sorted(outcomes, key=lambda name: (-rates[name], name)):
        before = [chain for last, chain in chains.items() if not _broken(outcomes[last], outcomes[task])]
        chains[task] = [*max(before, key=lambda chain: _merit(chain, rates), default=[]), task]
    return max(chains.values(), key=lambda chain: _merit(chain, rates), default=[])


def _merit(chain: list[str], rates: Mapping[str, float]) -> tuple[int, float]:
    return len(chain), sum(rates[task] for task in chain)


def _broken(before: np.ndarray, after: np.ndarray) -> int:
    """Rows in which the later has happened and the earlier has not."""
    return int(((after == 1) & (before != 1)).sum())


def _why_not(task: str, chain: list[str], outcomes: Mapping[str, np.ndarray], rates: Mapping[str, float]) -> str:
    more = [other for other in chain if rates[other] >= rates[task]]
    if not more:
        return f"label_{task} comes before no longer chain than {' > '.join(chain)}"
    count = _broken(outcomes[more[-1]], outcomes[task])
    if count:
        return (
            f"label_{task} is 1 in {count:,} rows whose label_{more[-1]} is not: no link of the chain after {more[-1]}"
        )
    return f"label_{task} is followed by no task of the chain {' > '.join(chain)}"


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
