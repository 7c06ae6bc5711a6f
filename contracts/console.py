"""What the command lines of all packages share: how a time is read, and the one look of what is printed.

A result goes to standard output, as text, as a table, or as JSON alone; progress, warnings and errors go to standard
error. NO_COLOR, and an output that is no terminal, get no escape codes.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from io import TextIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO
from urllib.parse import urlsplit

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

PIPE_WIDTH = 160
"""Columns of a table that no terminal shows."""

SHORT = 24
"""Characters of a value that stays on one line."""


def utc_time(text: str) -> datetime:
    """An option's ISO 8601 date or time; UTC where it names no zone.

    Raises:
        typer.BadParameter: It is none.

    Example:
        >>> utc_time("2026-03-01").isoformat()
        '2026-03-01T00:00:00+00:00'
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"expected an ISO 8601 date or time, got {text!r}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def shown_store(spec: str | Path) -> str:
    """A store as messages name it: a directory, or a URL without user and password.

    Example:
        >>> shown_store("redis://me:secret@host:6379/0")
        'redis://host:6379/0'
    """
    text = str(spec)
    if "://" not in text:
        return text
    parts = urlsplit(text)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """What a shell completes an option with, of names that are known beforehand.

    Example:
        >>> completing(("small", "medium"))("sm")
        ['small']
    """
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def console(*, stderr: bool = False) -> "Console":
    """What tables are printed on: no escape codes where nobody sees them or NO_COLOR asks for none, and no markup.

    What stands in a log may look like markup.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        width=None if stream.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH,
    )


def table(*headings: str, title: str | None = None, numbers: Sequence[str] = ()) -> "Table":
    """An empty table in the look that all commands share.

    Args:
        headings: Of its columns.
        title: Above it; no markup.
        numbers: More columns, whose values stand to the right.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = Table(*headings, title=None if title is None else Text(title), title_justify="left", box=box.SIMPLE)
    for heading in numbers:
        found.add_column(heading, justify="right", no_wrap=True)
    return found


def print_table(found: "RenderableType") -> None:
    """A table, or several with text between, on standard output: wider than the terminal where a value would be lost.

    Columns of short values keep them in one piece, those of sentences wrap between words.
    """
    from rich.console import Group
    from rich.measure import Measurement
    from rich.table import Table

    shown = console()
    wide = shown.options.update(width=10_000)
    parts = found.renderables if isinstance(found, Group) else [found]
    for part in (part for part in parts if isinstance(part, Table)):
        for column in part.columns:
            if max((Measurement.get(shown, wide, cell).maximum for cell in column.cells), default=0) <= SHORT:
                column.no_wrap = True
            else:
                column.min_width = SHORT
        shown.width = max(shown.width, Measurement.get(shown, wide, part).minimum)
    shown.print(found)


def warn(text: str) -> None:
    """One line on standard error that begins with ``warning:``."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def print_error(text: str) -> None:
    """One line on standard error, also where a command was asked to be quiet."""
    stream = sys.stderr
    print(text, file=stream.seen if isinstance(stream, Muted) else stream, flush=True)


class Muted(TextIOBase):
    """A text stream that drops what is written; ``seen`` is the one that stood in its place."""

    def __init__(self, seen: TextIO) -> None:
        super().__init__()
        self.seen = seen

    def write(self, text: str) -> int:
        return len(text)

    def writable(self) -> bool:
        return True


@contextmanager
def quietly(*, with_result: bool) -> Iterator[None]:
    """Print nothing inside the block but errors and, where JSON was asked for, the result.

    Example:
        >>> with quietly(with_result=False):
        ...     print("42 ads")
        >>> with quietly(with_result=True):
        ...     print_json(["ad-1"])
        [
          "ad-1"
        ]
    """
    with redirect_stderr(Muted(sys.stderr)):
        if with_result:
            yield
        else:
            with redirect_stdout(Muted(sys.stdout)):
                yield


def print_json(result: object) -> None:
    """Print a record, Struct or mapping as indented JSON; NaN becomes null."""
    print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())


From = Annotated[
    datetime | None,
    typer.Option("--from", parser=utc_time, metavar="TIME", help="Only requests from then on; UTC without a zone."),
]
Until = Annotated[
    datetime | None,
    typer.Option("--until", parser=utc_time, metavar="TIME", help="Only requests before then; UTC without a zone."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
