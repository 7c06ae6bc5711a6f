"""How long a training run is, where it stands, and what it came to."""

from dataclasses import dataclass

import msgspec

FEW_STEPS = 20
"""Steps below which a run hardly leaves its initial weights, whatever the rates."""


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the quality, after ``epoch`` whole epochs: the mean training loss since the last look, and the
    validation loss if there is one."""

    step: int
    epoch: int
    train_loss: float
    loss: float | None


class LoopState(msgspec.Struct, kw_only=True):
    """Where a run stands. ``best_step`` is the step whose weights had the lowest validation loss."""

    run: str
    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    misses: int = 0
    finished: bool = False
    history: list[Validation] = []


@dataclass(frozen=True)
class TrainResult:
    """What training came to; the model holds the best weights.

    Args:
        steps: Steps done in all.
        best_step: Step of the weights that the model holds.
        best_loss: Their validation loss; None without validation.
        history: Every validation.
    """

    steps: int
    best_step: int
    best_loss: float | None
    history: list[Validation]


def too_few_steps(steps: int, *, lower: str) -> str:
    """A warning where a run is that short; empty where it is not.

    Args:
        steps: Of the whole run.
        lower: The option that makes batches smaller, so that there are more of them.

    Example:
        >>> too_few_steps(2, lower="--batch-size")
        'warning: 2 steps only: lower --batch-size or raise --epochs'
        >>> too_few_steps(FEW_STEPS, lower="--batch-size")
        ''
    """
    if steps >= FEW_STEPS:
        return ""
    return f"warning: {steps} step{'' if steps == 1 else 's'} only: lower {lower} or raise --epochs"
