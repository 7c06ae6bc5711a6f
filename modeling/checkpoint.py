"""Checkpoints of a training run: safetensors and JSON, written whole or not at all, never pickled.

A checkpoint is a directory ``step-00001200`` with ``tensors.safetensors`` (weights, optimiser states, random state),
``state.json`` (where the run stands) and ``READY``. A killed process leaves at most a hidden directory that no reader
looks at.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from contracts.artifact import is_ready, publishing
from contracts.errors import ArtifactError, MismatchError
from modeling.distributed import ALONE, Ranks
from modeling.tables import FeatureTables, dense_parameters

TENSORS, STATE = "tensors.safetensors", "state.json"
_STEP = re.compile(r"step-(\d{8})")

S = TypeVar("S")

DenseStates = Mapping[str, Mapping[str, Tensor]]
"""Of each dense parameter by its name: AdamW's ``step``, ``exp_avg`` and ``exp_avg_sq``."""


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint on disk."""

    path: Path
    step: int

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """The tensors whose name begins with ``prefix``, without it."""
        path = self.path / TENSORS
        try:
            with safe_open(path, "pt") as file:
                names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 (it is no dict)
                return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
        except (SafetensorError, OSError) as error:
            raise ArtifactError(f"{path}: not a readable checkpoint: {error}") from error

    def state(self, type_: type[S]) -> S:
        """The run's state as it was saved."""
        path = self.path / STATE
        try:
            return msgspec.json.decode(path.read_bytes(), type=type_)
        except (msgspec.DecodeError, OSError) as error:
            raise ArtifactError(f"{path}: not the state of a checkpoint: {error}") from error


def save(directory: Path, step: int, tensors: Mapping[str, Tensor], state: msgspec.Struct) -> Checkpoint:
    """Write one checkpoint; one that the same step has already is kept as it is."""
    target = directory / f"step-{step:08d}"
    if not is_ready(target):
        with publishing(target) as aside:
            # clones: views of one storage would be refused by safetensors
            save_file({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, aside / TENSORS)
            (aside / STATE).write_bytes(msgspec.json.encode(state))
    return Checkpoint(target, step)


def at(directory: Path, step: int) -> Checkpoint:
    """The checkpoint of one step; ArtifactError where it is missing."""
    path = directory / f"step-{step:08d}"
    if not is_ready(path):
        raise ArtifactError(f"{path}: no finished checkpoint of step {step} here")
    return Checkpoint(path, step)


def latest(directory: Path) -> Checkpoint | None:
    """The finished checkpoint with the highest step, or None."""
    return max(_finished(directory), key=lambda checkpoint: checkpoint.step, default=None)


def prune(directory: Path, keep: Iterable[int]) -> None:
    """Remove the checkpoints of all other steps."""
    kept = set(keep)
    for checkpoint in _finished(directory):
        if checkpoint.step not in kept:
            # READY first, so that a checkpoint that loses files is no longer a checkpoint
            (checkpoint.path / "READY").unlink()
            shutil.rmtree(checkpoint.path)


def training_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """Everything a run needs to go on: ``model.``, ``dense.`` (AdamW), ``tables.`` (Adagrad) and ``random.``.

    Collective where ``ranks`` are several. The main process has it all then, tables whole, so that another number of
    processes can go on from it.
    """
    tensors = {f"model.{name}": tensor for name, tensor in _model_tensors(model).items()}
    for name, parameter in dense_parameters(model).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"dense.{name}.{key}"] = value
    tensors |= {f"tables.{name}": accumulated for name, accumulated in _table_states(model).items()}
    return tensors | {f"random.{name}": state for name, state in _random_states(ranks).items()}


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of a tensor that holds NaN or infinity; mostly its sum tells, which needs no mask as large as it.

    Example:
        >>> first_not_finite({"weight": torch.ones(2), "bias": torch.tensor([1.0, torch.inf])})
        'bias'
    """
    for name, values in tensors.items():
        if values.is_floating_point() and not values.sum().isfinite() and not values.isfinite().all():
            return name
    return None


@torch.no_grad()
def restore_training(
    checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks = ALONE
) -> None:
    """Put model, optimisers and random state back to where ``training_tensors`` took them.

    A process that has no random state in the checkpoint, which fewer processes wrote, keeps its own.
    """
    restore_model(checkpoint, model)
    load_dense_states(dense_states(checkpoint), model, optimizer)
    tables = checkpoint.tensors("tables.")
    for name, module in _tables(model).items():
        module.load_optimizer_state({key.removeprefix(f"{name}."): value for key, value in tables.items()})
    random = checkpoint.tensors("random.")
    for device, (_, put_back) in _random_sources().items():
        name = _random_name(device, ranks.rank)
        if name in random:
            put_back(random[name])


def dense_states(checkpoint: Checkpoint) -> DenseStates:
    """What AdamW had accumulated."""
    return states_by_parameter(checkpoint.tensors("dense."))


def states_by_parameter(tensors: Mapping[str, Tensor]) -> DenseStates:
    """``{"tower.weight.exp_avg": x}`` becomes ``{"tower.weight": {"exp_avg": x}}``."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, part = key.rpartition(".")
        found.setdefault(name, {})[part] = tensor
    return found


def load_dense_states(states: DenseStates, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Let the dense optimiser go on from ``states``; a parameter without one begins anew."""
    names = {parameter: name for name, parameter in dense_parameters(model).items()}
    order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    state = {index: dict(states[name]) for index, name in enumerate(order) if name in states}
    fresh = optimizer.state_dict()
    # through the optimiser, which knows on which device each part of its state belongs
    optimizer.load_state_dict(fresh | {"state": fresh["state"] | state})


def restore_model(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Put the model's weights alone back.

    Raises:
        MismatchError: The checkpoint is of another model; names the tensors that are missing, extra or misshapen.
    """
    tensors = checkpoint.tensors("model.")
    expected = {name: tuple(tensor.shape) for name, tensor in _dense_state(model).items()}
    for name, module in _tables(model).items():
        expected |= {f"{name}.{key}": shape for key, shape in module.matrix_shapes().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise MismatchError(f"{checkpoint.path}: is of another model, these tensors differ: {', '.join(names[:10])}")
    model.load_state_dict({name: tensors[name] for name in _dense_state(model)}, strict=False)
    for name, module in _tables(model).items():
        module.load_matrices({key.removeprefix(f"{name}."): value for key, value in tensors.items()})


def _finished(directory: Path) -> list[Checkpoint]:
    if not directory.is_dir():
        return []
    matches = [(path, _STEP.fullmatch(path.name)) for path in directory.iterdir()]
    return [Checkpoint(path, int(match[1])) for path, match in matches if match and is_ready(path)]


def _tables(model: nn.Module) -> dict[str, FeatureTables]:
    return {name: module for name, module in model.named_modules() if isinstance(module, FeatureTables)}


def _dense_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's state but for its tables."""
    inside = tuple(f"{name}." for name in _tables(model))
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(inside)}


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's state as one process has it, also where its tables are divided over several."""
    tensors = _dense_state(model)
    for name, module in _tables(model).items():
        tensors |= {f"{name}.{key}": matrix for key, matrix in module.matrices().items()}
    return tensors


def _table_states(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name}.{table}": accumulated
        for name, module in _tables(model).items()
        for table, accumulated in module.optimizer_state().items()
    }


def _random_sources() -> dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], None]]]:
    """How the random state of each device is taken and put back."""
    sources = {"cpu": (torch.get_rng_state, torch.set_rng_state)}
    if torch.cuda.is_initialized():
        sources["cuda"] = (torch.cuda.get_rng_state, torch.cuda.set_rng_state)
    return sources


def _random_states(ranks: Ranks) -> dict[str, Tensor]:
    return {
        _random_name(device, rank): state
        for device, (take, _) in _random_sources().items()
        for rank, state in enumerate(ranks.gather(take()))
    }


def _random_name(device: str, rank: int) -> str:
    return device if rank == 0 else f"{device}.{rank}"
