"""What a command writes lies apart from what it reads: a log, a run or a bundle is never written into."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from contracts.errors import InputError

OUT = "out"
PATHS_AS_TEXT = frozenset({"ads", "candidates", "against", "warm_start"})
"""Parameters that may be globs, or words beside paths."""


class ApartCommand(TyperCommand):
    """A command with ``--out`` and with options that name directories to read.

    Raises:
        InputError: ``--out`` is one of these directories, lies in it, or holds it; before anything is read.
    """

    def invoke(self, ctx: Any) -> Any:
        out = ctx.params.get(OUT)
        if out is not None:
            for name, directory in self._read(ctx):
                require_apart(Path(out), name, directory)
        return super().invoke(ctx)

    def _read(self, ctx: Any) -> Iterator[tuple[str, Path]]:
        """Name and value of each parameter that names a directory to read, of a glob its fixed part."""
        for parameter in self.params:
            given = ctx.params.get(parameter.name or "")
            for value in given if isinstance(given, list | tuple) else [given]:  # a list where it may be repeated
                if parameter.name == OUT or not (
                    isinstance(value, Path) or (value and parameter.name in PATHS_AS_TEXT)
                ):
                    continue
                directory = _fixed_part(Path(value))
                if directory.is_dir():
                    option = parameter.param_type_name == "option"
                    yield parameter.opts[0] if option else (parameter.name or "").upper(), directory


def require_apart(out: Path, name: str, directory: Path) -> None:
    """Refuse ``out`` where it and a directory that is read are one, or one holds the other; links are followed.

    Args:
        out: What is to be written.
        name: Of the option that names the directory.
        directory: It exists.

    Raises:
        InputError: It does not lie apart.
    """
    written, read = out.resolve(), directory.resolve()
    relation = {
        "is the same as": written == read,
        "lies inside": read in written.parents,
        "holds": written in read.parents and written.exists(),
    }
    for words, holds in relation.items():
        if holds:
            step = f"choose an --out apart from {directory}"
            raise InputError(f"--out {out}: {words} {name} {directory}, which is read", next_step=step)


def _fixed_part(path: Path) -> Path:
    """The directories before the first part of a glob that is a pattern.

    Example:
        >>> _fixed_part(Path("log/ads/2025-*/*.parquet")).as_posix()
        'log/ads'
    """
    parts = path.parts
    pattern = next((at for at, part in enumerate(parts) if any(sign in part for sign in "*?[")), len(parts))
    return Path(*parts[:pattern])
