"""The weights of a two-tower by the names that ``weights.safetensors`` gives them."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from contracts.errors import MismatchError
from engines.lookup import TABLE_PREFIX
from towers.two_tower import TwoTower

_TOWERS = ("query_tower", "pin_tower")


def model_weights(model: TwoTower) -> dict[str, Tensor]:
    """``tables.<name>``, ``query_tower.<parameter>`` and ``pin_tower.<parameter>``, on the CPU."""
    tables = {name: torch.from_numpy(values) for name, values in model.tables.export_tables().items()}
    return tables | {name: value.detach().cpu().contiguous() for name, value in _dense(model).items()}


def load_weights(model: TwoTower, tensors: Mapping[str, Tensor], *, source: Path) -> None:
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
    model.tables.import_tables({name: value.numpy() for name, value in tensors.items() if _is_table(name)})
    model.load_state_dict({name: value for name, value in tensors.items() if not _is_table(name)}, strict=False)


def _dense(model: TwoTower) -> dict[str, Tensor]:
    return {
        f"{tower}.{name}": value for tower in _TOWERS for name, value in model.get_submodule(tower).state_dict().items()
    }


def _is_table(name: str) -> bool:
    return name.startswith(TABLE_PREFIX)
