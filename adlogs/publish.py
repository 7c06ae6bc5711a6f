"""Datasets are written aside and appear by one rename, so that no reader meets half of one."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.errors import LogError


@contextmanager
def published_directory(target: Path) -> Iterator[Path]:
    """A hidden sibling to write into, renamed to `target` when the block ends without an error.

    Raises:
        LogError: `target` exists already.
    """
    if target.exists():
        raise LogError(f"{target}: exists already; remove it or choose another place")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}"
    aside.mkdir()
    try:
        yield aside
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
