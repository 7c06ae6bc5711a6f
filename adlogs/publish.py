"""A log directory appears whole or not at all, and never replaces another."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.artifact import publishing
from contracts.errors import LogError


@contextmanager
def published_directory(target: Path) -> Iterator[Path]:
    """A hidden sibling to write into, flushed to disk and renamed to `target` when the block ends without an error.

    Raises:
        LogError: `target` exists already.
    """
    if target.exists():
        raise LogError(
            f"{target}: exists already, expected the name of a new directory",
            next_step="remove it, or choose another name; what is there stays as it is",
        )
    with publishing(target) as aside:
        yield aside
