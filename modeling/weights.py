"""The weights of a model by the names that ``weights.safetensors`` gives them."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from contracts.errors import MismatchError
from modeling.tables import FeatureTables

TABLES = "tables."


def model_weights(model: nn.Module) -> dict[str, Tensor]:
    """``tables.<name>`` and each dense parameter and buffer by its own name, on the CPU.

    Args:
        model: Its embedding tables are its child ``tables``.
    """
    tables = {name: torch.from_numpy(values) for name, values in _tables(model).export_tables().items()}
    return tables | {name: value.detach().cpu().contiguous() for name, value in _dense(model).items()}


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, source: Path) -> None:
    """Put back what :func:`model_weights` gave.

    Args:
        source: Where ``tensors`` come from, for messages.

    Raises:
        MismatchError: They are of another model; names the tensors that are missing, extra or misshapen.
    """
    expected = {name: value.shape for name, value in model_weights(model).items()}
    found = {name: value.shape for name, value in tensors.items()}
    if expected != found:
        names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise MismatchError(f"{source}: is of another model, these tensors differ: {', '.join(names[:10])}")
    _tables(model).import_tables({name: value.numpy() for name, value in tensors.items() if name.startswith(TABLES)})
    with torch.no_grad():
        for name, value in _dense(model).items():
            value.copy_(tensors[name])


def _tables(model: nn.Module) -> FeatureTables:
    tables = model.get_submodule("tables")
    if not isinstance(tables, FeatureTables):
        raise TypeError(f"expected FeatureTables as the child `tables`, got {type(tables).__name__}")
    return tables


def _dense(model: nn.Module) -> dict[str, Tensor]:
    """Views of all that is not a table."""
    return {name: value for name, value in model.state_dict().items() if not name.startswith(TABLES)}
