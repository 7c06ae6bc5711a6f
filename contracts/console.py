"""What the command lines of all packages share: how a time is read and how a result is printed."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer


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
