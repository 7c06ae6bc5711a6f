"""The training loop of both models: dense AdamW, fused tables, validation, early stopping, checkpoints, resuming."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import torch
from torch import Tensor, nn

from contracts.errors import AdsieveError, InputError
from contracts.progress import Advance, progress
from modeling import checkpoint
from modeling.dense_optimizer import dense_optimizer, scaled_rate
from modeling.distributed import ALONE, Ranks
from modeling.loop_config import BatchSource, LoopConfig, SizedBatch
from modeling.loop_state import LoopState, TrainResult, Validation
from modeling.memory import keep_freed_memory
from modeling.precision import autocast, resolve
from modeling.schedule import learning_rate_factor
from modeling.spread import collect, spread
from modeling.tables import dense_parameters, feature_tables

REPORT_EVERY = 20
"""Steps between two looks at the loss, each of which waits for the device."""

B = TypeVar("B", bound=SizedBatch)


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
    batch_size: int | None = None,
    ranks: Ranks = ALONE,
    warm_states: checkpoint.DenseStates | None = None,
) -> TrainResult:
    """Train a model and leave its best weights in it.

    A step is: loss, backward (which also updates the tables of every ``FeatureTables`` inside the model), clipping,
    AdamW. A run that was killed goes on from its newest checkpoint in ``run_directory`` and ends with the weights
    that it would have had without the kill; a finished one only loads its best weights.

    Several processes train one model: each holds a part of the rows of the tables and all of the dense layers, and
    works on its share of each batch. The result is that of one process but for the order in which numbers are added,
    and for dropout, which each process draws for itself. At the end every process holds the whole model.

    Args:
        model: Holds dense layers and, usually, one ``FeatureTables``.
        source: Batches; their order may depend on the epoch alone.
        loss_fn: Runs the model on a batch and gives the mean loss, a scalar; with several processes this one's share
            of it, so that the sum over processes is the mean over the whole batch.
        config: Rates, length and rhythm.
        run_directory: Takes the checkpoints and the TensorBoard events.
        validate: Gives a loss, lower is better; called in evaluation mode, without gradients. None keeps the last
            weights.
        before_epoch: Called with each epoch as it begins, such as to draw tables anew.
        fingerprint: Of whatever else decides the run (data, model); checkpoints of another run are refused.
        title: Shown beside the progress.
        batch_size: Examples of a whole batch, for ``LoopConfig.reference_batch_size``.
        ranks: The processes of the run, and which of them this is.
        warm_states: What AdamW had accumulated where the model comes from, for a run that begins.

    Raises:
        ConfigError: ``reference_batch_size`` is set, and there is no ``batch_size``.
        InputError: ``source`` has no batch, or ``run_directory`` has checkpoints of another run.
        AdsieveError: The loss or a weight is no longer finite, of which no checkpoint is written; or the processes hold
            different weights.
    """
    keep_freed_memory()
    rate = scaled_rate(config, batch_size)
    spread(model, ranks)
    run = _Run(model, source, loss_fn, validate, config, rate, run_directory, ranks)
    run.resume(hashlib.sha256(msgspec.json.encode([config, fingerprint, len(source)])).hexdigest(), warm_states or {})
    with ExitStack() as stack:
        if ranks.is_main:
            run.advance = stack.enter_context(progress(title, total=run.steps_left, unit="steps"))
        if ranks.is_main and config.tensorboard:
            run.writer = stack.enter_context(_tensorboard(run_directory, run.state.step))
        while not run.state.finished:
            if run.state.batch == 0 and before_epoch is not None:
                before_epoch(run.state.epoch)
            run.epoch()
    run.load_best()
    state = run.state
    return TrainResult(state.step, state.best_step or state.step, state.best_loss, state.history)


@torch.no_grad()
def mean_loss(loss_fn: Callable[[B], Tensor], batches: Iterable[B], ranks: Ranks = ALONE) -> float:
    """Mean of a loss over batches, weighted by their number of examples; NaN without any.

    With several processes, ``loss_fn`` gives this one's share of the loss of its share of a batch, as in ``train``.
    """
    found = [(float(loss_fn(batch)), len(batch)) for batch in batches]
    if not found:
        return math.nan
    losses, counts = ranks.sum(torch.tensor(found, dtype=torch.float64)).T.tolist()
    total = sum(loss * count for loss, count in zip(losses, counts, strict=True))
    return total / sum(counts)


class _Run(Generic[B]):
    """One run of ``train``: the model, its optimisers, and where they stand."""

    def __init__(
        self,
        model: nn.Module,
        source: BatchSource[B],
        loss_fn: Callable[[B], Tensor],
        validate: Callable[[], float] | None,
        config: LoopConfig,
        learning_rate: float,
        directory: Path,
        ranks: Ranks,
    ) -> None:
        self._model, self._source, self._loss_fn, self._validate = model, source, loss_fn, validate
        self._config, self._checkpoints = config, directory / "checkpoints"
        self._learning_rate, self._ranks = learning_rate, ranks
        self._total_steps = config.epochs * len(source)
        self._parameters = list(dense_parameters(model).values())
        self._optimizer = dense_optimizer(self._parameters, config)
        self._tables = feature_tables(model)
        self._device = self._parameters[0].device
        self._precision = resolve(config.precision, self._device)
        self._unreported: list[Tensor] = []
        self.state = LoopState(run="")
        self.advance: Advance = lambda amount, *, note="": None
        self.writer: Any = None

    @property
    def steps_left(self) -> int:
        return max(self._total_steps - self.state.step, 0)

    def resume(self, run: str, warm_states: checkpoint.DenseStates) -> None:
        """Go on from the newest checkpoint; without one, begin with the states given."""
        self.state = LoopState(run=run)
        newest = checkpoint.latest(self._checkpoints) if self._ranks.is_main else None
        step = int(self._ranks.from_main(newest.step if newest else -1))
        if step < 0:
            if warm_states:
                checkpoint.load_dense_states(warm_states, self._model, self._optimizer)
            return
        found = checkpoint.at(self._checkpoints, step)
        self.state = found.state(LoopState)
        if self.state.run != run:
            raise InputError(
                f"{self._checkpoints}: holds checkpoints of a run with another configuration or other data; "
                "choose another directory, or remove it to start anew"
            )
        checkpoint.restore_training(found, self._model, self._optimizer, self._ranks)

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
        """Put the best weights into the model, which holds the newest; all of them, where it was divided."""
        best = self.state.best_step or self.state.step
        if best != self.state.step or not self._ranks.alone:
            if not self._ranks.alone:
                self._ranks.wait()  # for the checkpoint that the main process has written last
                collect(self._model)
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
        self._ranks.sum_gradients(self._parameters)
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
            group["lr"] = self._learning_rate * factor
        for tables in self._tables:
            tables.scale_learning_rate(factor)

    def _report(self) -> None:
        """Take in the losses since the last report: this is where the loop waits for the device."""
        count = len(self._unreported)
        if not count:
            return
        losses = self._ranks.sum(torch.stack(self._unreported).double())
        self._unreported.clear()
        odd = (~losses.isfinite()).nonzero().flatten().tolist()
        if odd:
            step = self.state.step - count + odd[0] + 1
            raise self._diverged(step, f"its loss is {float(losses[odd[0]])}")
        total = float(losses.sum())
        self.state.loss_sum += total
        self.state.loss_count += count
        self.advance(count, note=f"loss {total / count:.4f}")
        self._write("loss/train", total / count)

    def _diverged(self, step: int, what: str) -> AdsieveError:
        newest = checkpoint.latest(self._checkpoints)
        kept = "no checkpoint was written yet" if newest is None else f"the last good checkpoint is {newest.path}"
        return AdsieveError(f"training diverged at step {step}, {what}; {kept}; lower the learning rates")

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
            loss = self._ranks.from_main(self._validate())
        self._model.train()
        if not math.isfinite(loss):
            raise self._diverged(self.state.step, f"the validation loss is {loss}")
        return loss

    def _save(self) -> None:
        self._report()
        self._ranks.check_equal(dense_parameters(self._model), f"the dense weights at step {self.state.step}")
        state, tensors = self.state, checkpoint.training_tensors(self._model, self._optimizer, self._ranks)
        if odd := checkpoint.first_not_finite(tensors):
            raise self._diverged(state.step, f"{odd} is no longer finite")
        if self._ranks.is_main:
            checkpoint.save(self._checkpoints, state.step, tensors, state)
            checkpoint.prune(self._checkpoints, keep={state.step, state.best_step or state.step})

    def _write(self, name: str, value: float) -> None:
        if self.writer is not None:
            self.writer.add_scalar(name, value, self.state.step)


def _due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0


@contextmanager
def _tensorboard(run_directory: Path, step: int) -> Iterator[Any]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run_directory / "tensorboard"), purge_step=step) as writer:
        yield writer
