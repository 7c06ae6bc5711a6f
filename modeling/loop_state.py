"""Where a training run stands, and what it came to."""

from dataclasses import dataclass

import msgspec


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
