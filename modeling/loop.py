"""The training loop of both models: dense AdamW, fused tables, validation, early stopping, checkpoints, resuming."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import torch
from torch import Tensor, nn

from contracts.errors import AdsieveError, InputError, MismatchError
from contracts.progress import Advance, progress
from modeling import checkpoint
from modeling.loop_config import BatchSource, LoopConfig, SizedBatch
from modeling.memory import keep_freed_memory
from modeling.precision import autocast, resolve
from modeling.schedule import learning_rate_factor
from modeling.tables import FeatureTables, dense_parameters

REPORT_EVERY = 20
"""Steps between two looks at the loss, each of which waits for the device."""

B = TypeVar("B", bound=SizedBatch)


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


def train(
    model: nn.Module,
    source: BatchSource[B],
    loss_fn: Callable[[B], Tensor],
    *,
    config: LoopConfig,
    run_directory: Path,
    validate: Callable[[], float] | None = None,
    before_epoch: Callable[[int], None] | None = None,
    fingerprint: str = "",
    title: str = "Training",
) -> TrainResult:
    """Train a model and leave its best weights in it.

    A step is: loss, backward (which also updates the tables of every ``FeatureTables`` inside the model), clipping,
    AdamW. A run that was killed goes on from its newest checkpoint in ``run_directory`` and ends with the weights
    that it would have had without the kill; a finished one only loads its best weights.

    Args:
        model: Holds dense layers and, usually, one ``FeatureTables``.
        source: Batches; their order may depend on the epoch alone.
        loss_fn: Runs the model on a batch and gives the mean loss, a scalar.
        config: Rates, length and rhythm.
        run_directory: Takes the checkpoints and the TensorBoard events.
        validate: Gives a loss, lower is better; called in evaluation mode, without gradients. None keeps the last
            weights.
        before_epoch: Called with each epoch as it begins, such as to draw tables anew.
        fingerprint: Of whatever else decides the run (data, model); checkpoints of another run are refused.
        title: Shown beside the progress.

    Raises:
        InputError: ``source`` has no batch.
        MismatchError: ``run_directory`` has checkpoints of another run.
        AdsieveError: The loss is no longer finite.
    """
    keep_freed_memory()
    run = _Run(model, source, loss_fn, validate, config, run_directory)
    run.resume(hashlib.sha256(msgspec.json.encode([config, fingerprint, len(source)])).hexdigest())
    with ExitStack() as stack:
        run.advance = stack.enter_context(progress(title, total=run.steps_left, unit="steps"))
        run.writer = stack.enter_context(_tensorboard(run_directory, run.state.step)) if config.tensorboard else None
        while not run.state.finished:
            if run.state.batch == 0 and before_epoch is not None:
                before_epoch(run.state.epoch)
            run.epoch()
    run.load_best()
    state = run.state
    return TrainResult(state.step, state.best_step or state.step, state.best_loss, state.history)


@torch.no_grad()
def mean_loss(loss_fn: Callable[[B], Tensor], batches: Iterable[B]) -> float:
    """Mean of a loss over batches, weighted by their number of examples; NaN without any."""
    total, count = 0.0, 0
    for batch in batches:
        total += float(loss_fn(batch)) * len(batch)
        count += len(batch)
    return total / count if count else math.nan


class _Run(Generic[B]):
    """One run of ``train``: the model, its optimisers, and where they stand."""

    def __init__(
        self,
        model: nn.Module,
        source: BatchSource[B],
        loss_fn: Callable[[B], Tensor],
        validate: Callable[[], float] | None,
        config: LoopConfig,
        directory: Path,
    ) -> None:
        self._model, self._source, self._loss_fn, self._validate = model, source, loss_fn, validate
        self._config, self._checkpoints = config, directory / "checkpoints"
        self._total_steps = config.epochs * len(source)
        self._parameters = list(dense_parameters(model).values())
        self._optimizer = _adamw(self._parameters, config)
        self._tables = [module for module in model.modules() if isinstance(module, FeatureTables)]
        self._device = self._parameters[0].device
        self._precision = resolve(config.precision, self._device)
        self._unreported: list[Tensor] = []
        self.state = LoopState(run="")
        self.advance: Advance = lambda amount, *, note="": None
        self.writer: Any = None

    @property
    def steps_left(self) -> int:
        return max(self._total_steps - self.state.step, 0)

    def resume(self, run: str) -> None:
        """Go on from the newest checkpoint, if there is one."""
        self.state = LoopState(run=run)
        found = checkpoint.latest(self._checkpoints)
        if found is None:
            return
        self.state = found.state(LoopState)
        if self.state.run != run:
            raise MismatchError(
                f"{self._checkpoints}: holds checkpoints of a run with another configuration or other data; "
                "choose another directory, or remove it to start anew"
            )
        checkpoint.restore_training(found, self._model, self._optimizer)

    def epoch(self) -> None:
        """What is left of the current epoch."""
        state = self.state
        self._model.train()
        for batch in self._source.epoch(state.epoch, start=state.batch):
            self._step(batch)
            if _due(self._config.validate_every, state.step):
                self._look()
                self._save()
            elif _due(self._config.checkpoint_every, state.step):
                self._save()
            if state.finished:
                return
        if state.step == 0:
            raise InputError("there is nothing to train on: the log gave no batch")
        state.epoch, state.batch = state.epoch + 1, 0
        state.finished = state.epoch >= self._config.epochs
        self._look()
        self._save()

    def load_best(self) -> None:
        """Put the best weights into the model, which holds the newest."""
        best = self.state.best_step
        if best is not None and best != self.state.step:
            checkpoint.restore_model(checkpoint.at(self._checkpoints, best), self._model)
        self._model.eval()

    def _step(self, batch: B) -> None:
        factor = learning_rate_factor(
            self.state.step,
            total_steps=self._total_steps,
            warmup_steps=round(self._config.warmup_share * self._total_steps),
            final_factor=self._config.final_factor,
        )
        self._set_rates(factor)
        with autocast(self._precision, self._device):
            loss = self._loss_fn(batch)
        loss.backward()
        if self._config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._config.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._unreported.append(loss.detach())
        self.state.step += 1
        self.state.batch += 1
        if self.state.step % REPORT_EVERY == 0:
            self._report()

    def _set_rates(self, factor: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.learning_rate * factor
        for tables in self._tables:
            tables.scale_learning_rate(factor)

    def _report(self) -> None:
        """Take in the losses since the last report: this is where the loop waits for the device."""
        count = len(self._unreported)
        if not count:
            return
        total = float(torch.stack(self._unreported).double().sum())
        self._unreported.clear()
        if not math.isfinite(total):
            raise AdsieveError(
                f"training diverged before step {self.state.step}: the loss is {total}; lower the learning rates"
            )
        self.state.loss_sum += total
        self.state.loss_count += count
        self.advance(count, note=f"loss {total / count:.4f}")
        self._write("loss/train", total / count)

    def _look(self) -> None:
        """Validate, and remember whether this is the best so far; once a step at most."""
        state = self.state
        self._report()
        if state.history and state.history[-1].step == state.step:
            return
        loss = self._validation_loss()
        train_loss = state.loss_sum / state.loss_count
        state.loss_sum, state.loss_count = 0.0, 0
        state.history.append(Validation(step=state.step, epoch=state.epoch, train_loss=train_loss, loss=loss))
        if loss is None:
            return
        self._write("loss/validation", loss)
        if state.best_loss is None or loss < state.best_loss:
            state.best_step, state.best_loss, state.misses = state.step, loss, 0
        else:
            state.misses += 1
            state.finished |= self._config.patience is not None and state.misses >= self._config.patience

    def _validation_loss(self) -> float | None:
        if self._validate is None:
            return None
        self._model.eval()
        with torch.no_grad(), autocast(self._precision, self._device):
            loss = self._validate()
        self._model.train()
        if not math.isfinite(loss):
            raise AdsieveError(f"the validation loss at step {self.state.step} is {loss}; expected a finite number")
        return loss

    def _save(self) -> None:
        self._report()
        state, tensors = self.state, checkpoint.training_tensors(self._model, self._optimizer)
        checkpoint.save(self._checkpoints, state.step, tensors, state)
        checkpoint.prune(self._checkpoints, keep={state.step, state.best_step or state.step})

    def _write(self, name: str, value: float) -> None:
        if self.writer is not None:
            self.writer.add_scalar(name, value, self.state.step)


def _adamw(parameters: list[nn.Parameter], config: LoopConfig) -> torch.optim.AdamW:
    """AdamW whose decay spares biases, scales and other vectors."""
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)


def _due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0


@contextmanager
def _tensorboard(run_directory: Path, step: int) -> Iterator[Any]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run_directory / "tensorboard"), purge_step=step) as writer:
        yield writer
