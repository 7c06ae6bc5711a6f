"""Which engine serves: of those that load and keep parity on this machine, the first that none beats by far.

Nothing is assumed of a machine. Each candidate is loaded, compared with the trained module on a bundle's real rows and
timed on them; what cannot load (a package or a GPU is missing) or fails its gate is reported beside the winner.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Generic, Literal, TypeVar

import numpy as np

from contracts.errors import AdsieveError, ArtifactError
from engines.parity import BF16_GATE, FP32_GATE, ParityGate, Run, measure_parity, parity_inputs
from engines.protocol import EngineNotNowError

Loaded = TypeVar("Loaded")

GATES = {
    "onnxruntime_cpu": FP32_GATE,
    "openvino_fp32": FP32_GATE,
    "openvino_bf16": BF16_GATE,
    "torch_cuda": BF16_GATE,
    "tensorrt": BF16_GATE,
}
"""Each engine's gate on probabilities. The GPU engines may compute in BF16; a caller that builds them in fp32 gives
``FP32_GATE`` instead."""

REASON_LENGTH = 400
LEAST_GAIN = 1.1
"""So many times faster an engine has to be to take the place of one that is preferred: less is a moment's noise."""
WARM_UP_CALLS = 2
TIMED_CALLS, TIMED_S = 12, 0.02
"""A block has at least so many calls and takes so long: caches and threads are then warm, as they are under traffic."""


@dataclass(frozen=True, kw_only=True)
class Candidate(Generic[Loaded]):
    """One way to run a model.

    Args:
        name: Such as ``openvino_bf16``; shown in reports and metrics.
        load: Makes what would serve: one engine, or an object that chains several. Whatever it raises counts as
            unavailable.
        gate: What its outputs must keep.
    """

    name: str
    load: Callable[[], Loaded]
    gate: ParityGate


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of one candidate.

    ``unavailable`` could not load or run, ``refused`` failed its gate, ``passed`` did not, ``serves`` is the one of
    those that was chosen. ``error`` is the largest, ``rank_correlation`` the smallest over outputs, ``ms`` the median
    call; ``is_for_now`` tells that an unavailable one may load later.
    """

    name: str
    status: Literal["serves", "passed", "refused", "unavailable"]
    reason: str | None = None
    error: float | None = None
    rank_correlation: float | None = None
    ms: float | None = None
    is_for_now: bool = False

    def __str__(self) -> str:
        measured = [
            f"error {self.error:.2g}" if self.error is not None else "",
            f"rank correlation {self.rank_correlation:.5f}" if self.rank_correlation is not None else "",
            f"{self.ms:.2f} ms" if self.ms is not None else "",
            self.reason or "",
        ]
        return f"{self.name} {self.status}: {', '.join(part for part in measured if part)}"


@dataclass(frozen=True, kw_only=True)
class Selection(Generic[Loaded]):
    """The candidate that serves, what its ``load`` made, and the trials of all in the order they were given."""

    name: str
    loaded: Loaded
    trials: tuple[Trial, ...]


def select_engine(
    candidates: Sequence[Candidate[Loaded]],
    tensors: Mapping[str, np.ndarray],
    *,
    run: Callable[[Loaded], Run],
    source: str,
    timed_inputs: Mapping[str, np.ndarray] | None = None,
    seconds: float = 0.5,
) -> Selection[Loaded]:
    """Load, check and time the candidates one after another, and return one that passes its gate.

    It is the first, unless a later one is ``LEAST_GAIN`` times faster than the best so far. At most two are loaded at a
    time: that best one and the one on trial.

    Args:
        candidates: In order of preference.
        tensors: ``in.<name>`` and ``out.<name>`` arrays of a bundle's parity rows.
        run: How what was loaded runs on the inputs among ``tensors``.
        source: What is being loaded, for messages.
        timed_inputs: Inputs of a typical call, timed instead of all parity rows at once.
        seconds: Time after which no further call of one candidate is timed.

    Raises:
        ArtifactError: No candidate passes; the message gives the reason for each.
        EngineNotNowError: Likewise, but one of them may pass later.
        ValueError: Two candidates have one name.

    Example:
        >>> tensors = {"in.x": np.ones(3, np.float32), "out.y": np.full(3, 2, np.float32)}
        >>> doubles, triples = (lambda x: {"y": 2 * x["x"]}), (lambda x: {"y": 3 * x["x"]})
        >>> selection = select_engine(
        ...     [
        ...         Candidate(name="triples", load=lambda: triples, gate=FP32_GATE),
        ...         Candidate(name="doubles", load=lambda: doubles, gate=FP32_GATE),
        ...     ],
        ...     tensors,
        ...     run=lambda loaded: loaded,
        ...     source="example",
        ... )
        >>> selection.name, [trial.status for trial in selection.trials]
        ('doubles', ['refused', 'serves'])
    """
    names = [candidate.name for candidate in candidates]
    if len(set(names)) < len(names):
        raise ValueError(f"candidates must have distinct names, got {names}")
    inputs = parity_inputs(tensors) if timed_inputs is None else timed_inputs
    best: tuple[Trial, Loaded] | None = None
    trials = []
    for candidate in candidates:
        trial, passed = _tried(candidate, tensors, run, source, inputs, seconds)
        trials.append(trial)
        if passed and (best is None or _ms(trial) * LEAST_GAIN < _ms(best[0])):
            best = trial, passed[0]
        del passed  # a loser's memory is free before the next one loads
    if best is None:
        kind = EngineNotNowError if any(trial.is_for_now for trial in trials) else ArtifactError
        raise kind(f"{source}: no engine can serve: " + "; ".join(map(str, trials)))
    name, winner = best[0].name, best[1]
    return Selection(
        name=name,
        loaded=winner,
        trials=tuple(replace(trial, status="serves") if trial.name == name else trial for trial in trials),
    )


def _tried(
    candidate: Candidate[Loaded],
    tensors: Mapping[str, np.ndarray],
    run: Callable[[Loaded], Run],
    source: str,
    inputs: Mapping[str, np.ndarray],
    seconds: float,
) -> tuple[Trial, list[Loaded]]:
    """The trial of one candidate, and what it loaded if it passed, else nothing."""
    try:
        loaded = candidate.load()
    except Exception as error:  # a driver or library that is absent, old or broken raises whatever it likes
        is_for_now = isinstance(error, EngineNotNowError)
        return Trial(name=candidate.name, status="unavailable", reason=_reason(error), is_for_now=is_for_now), []
    try:
        parity = measure_parity(run(loaded), tensors, source=source)
        refusal = candidate.gate.refusal(parity)
        ms = None if refusal else median_ms(lambda: run(loaded)(inputs), seconds=seconds)
    except Exception as error:  # likewise when it runs
        return Trial(name=candidate.name, status="refused", reason=_reason(error)), []
    trial = Trial(
        name=candidate.name,
        status="refused" if refusal else "passed",
        reason=refusal,
        error=float(np.max(list(parity.errors.values()))),
        rank_correlation=float(np.min(list(parity.rank_correlations.values()))),
        ms=ms,
    )
    return trial, [] if refusal else [loaded]


def median_ms(call: Callable[[], object], *, seconds: float) -> float:
    """Median milliseconds of a block of calls after a warm-up; the block ends early where ``seconds`` are over."""
    for _ in range(WARM_UP_CALLS):
        call()
    took: list[float] = []
    total = 0.0
    while not took or (total < seconds and (len(took) < TIMED_CALLS or total < TIMED_S)):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
        total += took[-1]
    return median(took) * 1e3


def _ms(trial: Trial) -> float:
    return float("inf") if trial.ms is None else trial.ms


def _reason(error: Exception) -> str:
    """An error as part of one line: messages of libraries run over many."""
    text = " ".join(str(error).split())[:REASON_LENGTH]
    return text if isinstance(error, AdsieveError) else f"{type(error).__name__}: {text}"
