"""Whether a model fits into memory, asked before it is built: an allocation that fails later names no cause."""

from pathlib import Path

from torch import nn

from contracts.errors import ConfigError
from contracts.layout import side_layout
from contracts.schema import FeatureSchema, Side

BYTES_A_DENSE_PARAMETER = 16
"""fp32: the weight, its gradient and the two moments of AdamW."""

_FLOAT_BYTES = 4
_CGROUP = Path("/sys/fs/cgroup")


def require_memory(dense: nn.Module, schema: FeatureSchema, sides: tuple[Side, ...]) -> None:
    """Refuse a model whose weights and optimisers' states alone are more than the memory that is available.

    Counts :data:`BYTES_A_DENSE_PARAMETER` and, of each table that is read, 4 bytes a weight and 4 a row (the sum of
    row-wise Adagrad). Activations and the log come on top, so what passes may still be too large.

    Args:
        dense: The dense layers; on the meta device they cost nothing.
        schema: A fitted schema.
        sides: Those that the model reads.

    Raises:
        ConfigError: It does not fit.
    """
    available = available_memory()
    parameters = sum(parameter.numel() for parameter in dense.parameters())
    weights, rows = _table_sizes(schema, sides)
    needed = BYTES_A_DENSE_PARAMETER * parameters + _FLOAT_BYTES * (weights + rows)
    if available is not None and needed > available:
        raise ConfigError(
            f"model: {parameters:,} parameters of dense layers and {weights:,} of tables need {_gib(needed)} to be "
            f"trained, {_gib(available)} of memory are available; expected smaller sizes"
        )


def available_memory() -> int | None:
    """Bytes that a process can still get without swapping, within the limit of its container; None where unknown."""
    found = [_available_in_system(), _available_in_cgroup()]
    known = [amount for amount in found if amount is not None]
    return min(known) if known else None


def _available_in_system() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _available_in_cgroup() -> int | None:
    """The limit less what is in use, page cache aside: the system takes that back first."""
    try:
        limit, used = (_CGROUP / "memory.max").read_text(), int((_CGROUP / "memory.current").read_text())
        cache = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines()).get("file", "0")
    except (OSError, ValueError):
        return None
    return None if limit.strip() == "max" else max(int(limit) - used + int(cache), 0)


def _table_sizes(schema: FeatureSchema, sides: tuple[Side, ...]) -> tuple[int, int]:
    """Weights and rows of all tables that some side reads, each once."""
    layouts = [side_layout(schema, side) for side in sides]
    columns = [column for layout in layouts for column in layout.bags]
    columns += [field for layout in layouts for sequence in layout.sequences for field in sequence.fields]
    tables, used = schema.all_tables(), {column.table for column in columns}
    return sum(tables[name].num_rows * tables[name].dim for name in used), sum(tables[name].num_rows for name in used)


def _gib(amount: int) -> str:
    return f"{amount / 2**30:,.1f} GiB"
