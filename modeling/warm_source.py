"""A trained model to begin from: a finished run, or a sealed bundle."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from contracts.artifact import MANIFEST, file_sha256, holding, is_ready
from contracts.bundle import CONFIG_FILE, WEIGHTS_FILE, Kind, open_bundle
from contracts.config import convert
from contracts.errors import InputError
from contracts.schema import FeatureSchema
from modeling import checkpoint
from modeling.run import SUMMARY_FILE
from modeling.warm_start import OptimizerStates, optimizer_states
from modeling.weights import load_weights

STATES_FILE = "optimizer.safetensors"
"""Of a bundle that keeps its optimisers' states: what a run that begins from it goes on with."""

_DENSE, _TABLES = "dense.", "tables."

C = TypeVar("C")
M = TypeVar("M", bound=nn.Module)
C_co = TypeVar("C_co", covariant=True)
M_co = TypeVar("M_co", bound=nn.Module, covariant=True)


@dataclass(frozen=True)
class WarmSource(Generic[C, M]):
    """A trained model.

    Args:
        name: Where it comes from, for messages.
        version: What it is: a run that begins from it goes on from no other.
        schema: Of the model.
        config: Of the model and its training.
        model: Its weights.
        states: Of its optimisers, as of its weights; empty from a sealed bundle that keeps none.
    """

    name: str
    version: str
    schema: FeatureSchema
    config: C
    model: M
    states: OptimizerStates


class FinishedRun(Protocol[C_co, M_co]):
    """What a run is read as."""

    @property
    def schema(self) -> FeatureSchema: ...

    @property
    def config(self) -> C_co: ...

    @property
    def model(self) -> M_co: ...


def read_source(
    path: Path,
    *,
    kind: Kind,
    config_type: type[C],
    build: Callable[[FeatureSchema, C], M],
    load_run: Callable[[Path], FinishedRun[C, M]],
) -> WarmSource[C, M]:
    """Open a run or a bundle.

    Args:
        path: Of either.
        kind: Of the bundle.
        config_type: Of the bundle's configuration.
        build: Makes the model of a bundle, with any weights.
        load_run: Opens a finished run.

    Raises:
        InputError: ``path`` is neither.
        ArtifactError: It is truncated or altered.
        MismatchError: Its weights are not those of its configuration.
    """
    path = Path(path)
    if not is_ready(path):
        if not (path / SUMMARY_FILE).exists() and not (path / MANIFEST).exists():
            raise InputError(f"no run or bundle at {path}{holding(path)}")
        run, version = load_run(path), f"run-{file_sha256(path / WEIGHTS_FILE)[:12]}"
        return WarmSource(str(path), version, run.schema, run.config, run.model, optimizer_states(path))
    bundle = open_bundle(path, kind=kind)
    config = convert(bundle.config, config_type, source=str(path / CONFIG_FILE))
    model = build(bundle.schema, config)
    load_weights(model, _copies(bundle.tensors()), source=path / WEIGHTS_FILE)
    states = OptimizerStates()
    if STATES_FILE in bundle.manifest.files:
        states = _read_states(_copies(bundle.tensors(STATES_FILE)))
    return WarmSource(str(path), bundle.manifest.version, bundle.schema, config, model, states)


def write_states(run: Path, directory: Path, *, dense: bool = True) -> None:
    """Write the states of a finished run's optimisers into a bundle that is being sealed; nothing where it has none.

    Without them the sums of squares of its tables begin at zero, and the first step of each row, as long as the row,
    would undo what was carried over.

    Args:
        run: Directory of the run.
        directory: Of the bundle.
        dense: Also the states of dense parameters; not where the bundle's are others than the run's.
    """
    states = optimizer_states(run)
    tensors = {f"{_TABLES}{table}": sums for table, sums in states.adagrad.items()}
    for name, parts in (states.adam if dense else {}).items():
        tensors |= {f"{_DENSE}{name}.{part}": values for part, values in parts.items()}
    if tensors:
        save_file(tensors, directory / STATES_FILE)


def _read_states(tensors: Mapping[str, Tensor]) -> OptimizerStates:
    dense = {name.removeprefix(_DENSE): values for name, values in tensors.items() if name.startswith(_DENSE)}
    tables = {name.removeprefix(_TABLES): values for name, values in tensors.items() if name.startswith(_TABLES)}
    return OptimizerStates(checkpoint.states_by_parameter(dense), tables)


def _copies(tensors: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    # mapped arrays are read-only, which torch cannot mark
    return {name: torch.from_numpy(values.copy()) for name, values in tensors.items()}
