"""Checkpoints of a training run: safetensors and JSON, written whole or not at all, never pickled.

A checkpoint is a directory ``step-00001200`` with ``tensors.safetensors`` (weights, optimiser states, random state),
``state.json`` (where the run stands) and ``READY``. A killed process leaves at most a hidden directory that no reader
looks at.
"""

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from contracts.artifact import is_ready, publishing
from contracts.errors import ArtifactError, MismatchError
from modeling.tables import FeatureTables, dense_parameters

TENSORS, STATE = "tensors.safetensors", "state.json"
_STEP = re.compile(r"step-(\d{8})")

S = TypeVar("S")


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint on disk."""

    path: Path
    step: int

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """The tensors whose name begins with ``prefix``, without it."""
        path = self.path / TENSORS
        try:
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise ArtifactError(f"{path}: not a readable checkpoint: {error}") from error
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

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


def training_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Everything a run needs to go on: ``model.``, ``dense.`` (AdamW), ``tables.`` (Adagrad) and ``random.``."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in dense_parameters(model).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"dense.{name}.{key}"] = value
    tensors |= {f"tables.{name}": accumulated for name, accumulated in _table_states(model).items()}
    return tensors | {f"random.{device}": state for device, state in _random_states().items()}


@torch.no_grad()
def restore_training(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put model, optimisers and random state back to where ``training_tensors`` took them."""
    restore_model(checkpoint, model)
    dense = checkpoint.tensors("dense.")
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for key, tensor in dense.items():
        name, _, part = key.rpartition(".")
        by_parameter.setdefault(name, {})[part] = tensor
    names = {parameter: name for name, parameter in dense_parameters(model).items()}
    order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    state = {index: by_parameter[name] for index, name in enumerate(order) if name in by_parameter}
    # through the optimiser, which knows on which device each part of its state belongs
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    tables = checkpoint.tensors("tables.")
    for name, accumulated in _table_states(model).items():
        accumulated.copy_(tables[name])
    random = checkpoint.tensors("random.")
    torch.set_rng_state(random["cpu"])
    if "cuda" in random:
        torch.cuda.set_rng_state(random["cuda"])


def restore_model(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Put the model's weights alone back.

    Raises:
        MismatchError: The checkpoint is of another model; names the tensors that are missing, extra or misshapen.
    """
    tensors = checkpoint.tensors("model.")
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise MismatchError(f"{checkpoint.path}: is of another model, these tensors differ: {', '.join(names[:10])}")
    model.load_state_dict(tensors)


def _finished(directory: Path) -> list[Checkpoint]:
    if not directory.is_dir():
        return []
    matches = [(path, _STEP.fullmatch(path.name)) for path in directory.iterdir()]
    return [Checkpoint(path, int(match[1])) for path, match in matches if match and is_ready(path)]


def _table_states(model: nn.Module) -> dict[str, Tensor]:
    modules = {name: module for name, module in model.named_modules() if isinstance(module, FeatureTables)}
    return {
        f"{name}.{table}": accumulated
        for name, module in modules.items()
        for table, accumulated in module.optimizer_state().items()
    }


def _random_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else states
