"""A trained model to begin from: a finished run, or a sealed bundle."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from torch import nn

from contracts.artifact import file_sha256, is_ready
from contracts.bundle import CONFIG_FILE, WEIGHTS_FILE, Kind, open_bundle
from contracts.config import convert
from contracts.schema import FeatureSchema
from modeling.warm_start import OptimizerStates, optimizer_states
from modeling.weights import load_weights

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
        states: Of its optimisers, as of its weights; empty from a sealed bundle.
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
        run, version = load_run(path), f"run-{file_sha256(path / WEIGHTS_FILE)[:12]}"
        return WarmSource(str(path), version, run.schema, run.config, run.model, optimizer_states(path))
    bundle = open_bundle(path, kind=kind)
    config = convert(bundle.config, config_type, source=str(path / CONFIG_FILE))
    model = build(bundle.schema, config)
    weights = {name: torch.from_numpy(values.copy()) for name, values in bundle.tensors().items()}
    load_weights(model, weights, source=path / WEIGHTS_FILE)
    return WarmSource(str(path), bundle.manifest.version, bundle.schema, config, model, OptimizerStates())
