"""How the training loop is configured, and what it expects of its batches."""

from collections.abc import Iterator
from typing import Literal, Protocol, TypeVar

import msgspec

from contracts.ranges import Count, Decay, Rate, Share
from modeling.precision import Precision


class SizedBatch(Protocol):
    """A batch that knows its number of examples."""

    def __len__(self) -> int: ...


B_co = TypeVar("B_co", bound=SizedBatch, covariant=True)


class BatchSource(Protocol[B_co]):
    """Batches in an order that depends on the epoch alone, so that a resumed run sees the same ones."""

    def __len__(self) -> int:
        """Batches an epoch; an estimate suffices."""
        ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[B_co]:
        """The batches of one epoch from the ``start``-th on."""
        ...


class LoopConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is trained.

    Args:
        epochs: Passes over the examples.
        dense_optimizer: Of the dense parameters; ``adagrad``, without decay, is what the tables have.
        learning_rate: Peak rate of the dense parameters. Tables have a rate of their own and share the schedule.
        reference_batch_size: Batch size that ``learning_rate`` is meant for. At another one, over all processes, it is
            multiplied by the root of their ratio (modeling/dense_optimizer.py). None takes it as it is.
        weight_decay: Of dense matrices; biases and scales do not decay.
        warmup_share: Share of all steps in which the rate rises from 0.
        final_factor: Share of the peak rate that is left at the last step.
        clip_norm: Largest norm of the dense gradient; None leaves it as it is.
        precision: Of dense products in the forward pass: ``fp32``, ``bf16``, or ``auto`` for BF16 where it is native.
        validate_every: Steps between validations, beside the one after each epoch; None for that one alone.
        patience: Validations without a better loss after which training stops; None never stops early.
        checkpoint_every: Steps between checkpoints, beside the one at each validation; None for those alone.
        tensorboard: Write losses and rates for TensorBoard into the run directory.
    """

    epochs: Count = 1
    dense_optimizer: Literal["adamw", "adagrad"] = "adamw"
    learning_rate: Rate = 1e-3
    reference_batch_size: Count | None = None
    weight_decay: Decay = 1e-5
    warmup_share: Share = 0.05
    final_factor: Share = 0.1
    clip_norm: Rate | None = 1.0
    precision: Precision = "fp32"
    validate_every: Count | None = None
    patience: Count | None = None
    checkpoint_every: Count | None = None
    tensorboard: bool = False
