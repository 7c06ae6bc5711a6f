"""The training loop: what it optimises, when it stops, and that a killed run ends as an unbroken one."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.errors import AdsieveError, InputError
from contracts.schema import FeatureSchema, save_schema
from loading import load
from modeling.loop import LoopConfig, TrainResult, mean_loss, train

SCRIPT = Path(__file__).with_name("small_training.py")


class Points(list):
    """A batch of numbers."""


class PointBatches:
    """``per_epoch`` batches of fixed points around 2."""

    def __init__(self, per_epoch: int) -> None:
        self.per_epoch = per_epoch

    def __len__(self) -> int:
        return self.per_epoch

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Points]:
        for number in range(start, self.per_epoch):
            yield Points([1.0 + number / self.per_epoch, 3.0 - number / self.per_epoch])


class Constant(nn.Module):
    """One number."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def loss(self, batch: Points) -> Tensor:
        return (self.value - torch.tensor(batch)).square().mean()


def fit(directory: Path, *, validate: Any = None, per_epoch: int = 10, loss: Any = None, **config: Any) -> Any:
    model = Constant()
    settings = LoopConfig(**{"learning_rate": 0.1, "clip_norm": None, "warmup_share": 0.0, **config})
    check = validate(model) if validate else None
    loss_fn = loss(model) if loss else model.loss
    result = train(model, PointBatches(per_epoch), loss_fn, config=settings, run_directory=directory, validate=check)
    return model, result


def test_dense_parameters_follow_adamw_with_the_schedule(tmp_path: Path) -> None:
    model, result = fit(tmp_path, epochs=3, warmup_share=0.2, final_factor=0.1)
    reference = Constant()
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.1, weight_decay=0.0)
    factors = [(step + 1) / 6 if step < 6 else 1 - 0.9 * (step - 5) / 24 for step in range(30)]
    batches = [batch for _ in range(3) for batch in PointBatches(10).epoch(0)]
    for factor, batch in zip(factors, batches, strict=True):
        optimizer.param_groups[0]["lr"] = 0.1 * factor
        optimizer.zero_grad()
        reference.loss(batch).backward()
        optimizer.step()
    torch.testing.assert_close(model.value, reference.value)
    assert (result.steps, result.best_step, result.best_loss) == (30, 30, None)
    assert [look.step for look in result.history] == [10, 20, 30]


def test_the_best_weights_stay_and_patience_ends_the_run(tmp_path: Path) -> None:
    losses = iter([0.5, 0.3, 0.4, 0.6, 0.2])
    values: list[float] = []

    def validate(model: Constant) -> Any:
        def loss() -> float:
            assert not model.training
            values.append(float(model.value.detach()))
            return next(losses)

        return loss

    model, result = fit(tmp_path, validate=validate, epochs=9, validate_every=4, per_epoch=100, patience=2)
    assert (result.steps, result.best_step, result.best_loss) == (16, 8, 0.3)
    assert float(model.value.detach()) == values[1]
    assert not model.training
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-00000008", "step-00000016"]


def test_each_epoch_is_announced_once(tmp_path: Path) -> None:
    epochs: list[int] = []
    model = Constant()
    train(
        model,
        PointBatches(3),
        model.loss,
        config=LoopConfig(epochs=3),
        run_directory=tmp_path,
        before_epoch=epochs.append,
    )
    assert epochs == [0, 1, 2]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    model, _ = fit(tmp_path, epochs=2)

    def refuse(model: Constant) -> Any:
        return lambda batch: pytest.fail("a finished run took a step")

    again, result = fit(tmp_path, epochs=2, loss=refuse)
    assert torch.equal(again.value, model.value)
    assert result.steps == 20


def test_runs_that_cannot_go_on_say_why(tmp_path: Path) -> None:
    fit(tmp_path / "one", epochs=1)
    with pytest.raises(InputError, match="checkpoints of a run with another configuration"):
        fit(tmp_path / "one", epochs=2)
    with pytest.raises(InputError, match="nothing to train on"):
        fit(tmp_path / "two", per_epoch=0)
    with pytest.raises(AdsieveError, match="at step 10, the validation loss is nan; no checkpoint was written"):
        fit(tmp_path / "four", validate=lambda model: lambda: float("nan"))


@pytest.mark.parametrize(("bad", "checkpoint"), [(13, 10), (9, 5), (27, 25), (3, None)])
def test_the_step_that_diverges_is_named_and_the_checkpoint_before_it_kept(
    tmp_path: Path, bad: int, checkpoint: int | None
) -> None:
    """Whenever the loop looks at its losses: every 20 steps, and before a checkpoint."""
    kept = f"the last good checkpoint is .*step-{checkpoint:08d}" if checkpoint else "no checkpoint was written yet"
    steps = 0

    def breaks(model: Constant) -> Any:
        def loss(batch: Points) -> Tensor:
            nonlocal steps
            steps += 1
            return model.loss(batch) * (float("inf") if steps == bad else 1.0)

        return loss

    with pytest.raises(AdsieveError, match=f"training diverged at step {bad}, its loss is inf; {kept}"):
        fit(tmp_path, per_epoch=40, loss=breaks, checkpoint_every=5)
    found = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert found == ([f"step-{checkpoint:08d}"] if checkpoint else [])


def test_weights_that_are_no_longer_finite_are_not_kept(tmp_path: Path) -> None:
    """A gradient may overflow where the loss is finite, and no later loss tells of the last step."""

    def breaks(model: Constant) -> Any:
        def loss(batch: Points) -> Tensor:
            value = model.loss(batch)
            value.register_hook(lambda gradient: gradient * float("nan"))
            return value

        return loss

    with pytest.raises(AdsieveError, match=r"training diverged at step 1, model\.value is no longer finite"):
        fit(tmp_path, per_epoch=1, loss=breaks)
    assert not list((tmp_path / "checkpoints").glob("step-*"))


def test_mean_loss_weights_batches_by_their_examples() -> None:
    batches = [Points([1.0]), Points([2.0, 2.0, 2.0])]
    assert mean_loss(lambda batch: torch.tensor(batch).mean(), batches) == pytest.approx(1.75)


def test_losses_reach_tensorboard(tmp_path: Path) -> None:
    fit(tmp_path, epochs=3, tensorboard=True)
    assert list((tmp_path / "tensorboard").glob("events*"))


@pytest.fixture(scope="module")
def small_training() -> ModuleType:
    return load(SCRIPT)


@pytest.mark.parametrize("how", [("--kill-at", "20"), ("--kill-in-save", "4")])
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(
    small_training: ModuleType, small_schema: FeatureSchema, small_log: Any, tmp_path: Path, how: tuple[str, str]
) -> None:
    log, schema_file = Path(small_log.paths.requests).parent, tmp_path / "schema.yaml"
    save_schema(small_schema, schema_file)
    child = [sys.executable, str(SCRIPT), str(log), str(schema_file), str(tmp_path / "broken"), *how]
    assert subprocess.run(child, capture_output=True, check=False).returncode == -signal.SIGKILL
    assert list((tmp_path / "broken" / "checkpoints").glob("step-*"))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    resumed, resumed_result = small_training.run(log, schema_file, tmp_path / "broken")
    straight, result = small_training.run(log, schema_file, tmp_path / "straight")
    torch.set_num_threads(threads)
    assert_equal_runs(resumed, resumed_result, straight, result)


def assert_equal_runs(
    resumed: nn.Module, resumed_result: TrainResult, straight: nn.Module, result: TrainResult
) -> None:
    assert result.steps > 25
    assert resumed_result == result
    expected = straight.state_dict()
    for name, tensor in resumed.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
