"""Progress of long work: a bar on a terminal, plain lines elsewhere and under NO_COLOR, on standard error."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

PLAIN_INTERVAL_S = 5.0
MIN_PACE_S, MIN_RATE = 1.0, 1.0


class Advance(Protocol):
    """Reports that ``amount`` more units are done, with an optional short note such as the current loss.

    An amount of 0 announces what begins now.
    """

    def __call__(self, amount: int, *, note: str = "") -> None: ...


@contextmanager
def progress(title: str, *, total: int | None, unit: str = "rows", done: int = 0) -> Iterator[Advance]:
    """Show the progress of one long step.

    Args:
        title: What is being done, such as ``Encoding requests``.
        total: Units in all, or None when it is not known beforehand.
        unit: Name of what is counted.
        done: Units that an earlier run had done.

    Example:
        >>> with progress("Reading", total=2) as advance:
        ...     advance(2)
    """
    console = Console(stderr=True)
    if console.is_terminal and not os.environ.get("NO_COLOR"):
        with _bar(console, unit) as bar:
            task = bar.add_task(title, total=total, completed=done, note="")
            yield lambda amount, *, note="": bar.update(task, advance=amount, note=note)
    else:
        lines = _PlainLines(console, title, total, unit, done)
        yield lines.advance
        lines.finish()


def tell(text: str) -> None:
    """One line beside the progress, on standard error, if there is something to say."""
    if text:
        print(text, file=sys.stderr, flush=True)


def pace_text(amount: int, elapsed_s: float, remaining: int | None, unit: str) -> str:
    """Rate and time left, once there is enough to tell them from.

    Example:
        >>> pace_text(50_000, 5.0, 600_000, "ads")
        ', 10,000 ads/s, 1 min left'
    """
    if not amount or elapsed_s < MIN_PACE_S:
        return ""
    rate = amount / elapsed_s
    pace = f", {rate:,.0f} {unit}/s" if rate >= MIN_RATE else ""
    if not remaining:
        return pace
    left = remaining / rate
    text = f"{left:.0f} s" if left < 60 else f"{left / 60:.0f} min" if left < 7200 else f"{left / 3600:.1f} h"
    return f"{pace}, {text} left"


def _bar(console: Console, unit: str) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        _RateColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Progress(*columns, console=console)


class _RateColumn(ProgressColumn):
    """Units a second, of late."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} {self._unit}/s" if task.speed else "")


class _PlainLines:
    """At most one line every few seconds, one for each announcement, and one at the end."""

    def __init__(self, console: Console, title: str, total: int | None, unit: str, done: int) -> None:
        self._console, self._title, self._total, self._unit = console, title, total, unit
        self._begun = self._done = done
        self._note = ""
        self._start = self._last = time.monotonic()
        self._printed: int | None = None

    def advance(self, amount: int, *, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        if not amount or time.monotonic() - self._last >= PLAIN_INTERVAL_S:
            self._last = time.monotonic()
            self._print()

    def finish(self) -> None:
        if self._printed != self._done:
            self._print()

    def _print(self) -> None:
        self._printed = self._done
        elapsed = time.monotonic() - self._start
        of_total = f" of {self._total:,}" if self._total is not None else ""
        note = f", {self._note}" if self._note else ""
        pace = pace_text(self._done - self._begun, elapsed, self._total and self._total - self._done, self._unit)
        line = f"{self._title}: {self._done:,}{of_total} {self._unit}, {elapsed:.0f} s{pace}{note}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
