"""Which server a mirror was filled from, and when it was last in step with it.

origin.json    in the mirror: the server; modified when the mirror was last brought in step with it
"""

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from contracts.artifact import write_json
from contracts.errors import InputError

ORIGIN = "origin.json"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of a server, without user and password."""

    url: str


def require_origin(root: Path, name: str) -> None:
    """Refuse a mirror that was filled from another server: a publish would bring the one's releases into the other.

    Args:
        root: Directory of the mirror.
        name: The server's URL without user and password.

    Raises:
        InputError: Names both servers, and what to do where one server has got another address.
    """
    filled = _read(root)
    if filled is not None and _place(filled.url) != _place(name):
        raise InputError(
            f"{root}: mirrors {filled.url}, not {name}; give each store a directory of its own by --local or "
            f"ADSIEVE_LOCAL, or remove {root / ORIGIN} where it is the same store at another address"
        )


def note_origin(root: Path, name: str) -> None:
    """Note that the mirror is in step with a server now."""
    if _read(root) is None:
        write_json(root / ORIGIN, Origin(url=name))
    os.utime(root / ORIGIN)


def in_step_at(root: Path) -> datetime | None:
    """When a mirror was last in step with its server; None where it never was."""
    with suppress(OSError):
        return datetime.fromtimestamp(int((root / ORIGIN).stat().st_mtime), UTC)
    return None


def _read(root: Path) -> Origin | None:
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode((root / ORIGIN).read_bytes(), type=Origin)
    return None


def _place(url: str) -> str:
    """Address and database; with and without TLS are one server.

    Example:
        >>> _place("rediss://host:6379"), _place("redis://host:6379/0")
        ('host:6379/0', 'host:6379/0')
    """
    scheme, _, place = url.partition("://")
    return place if scheme == "unix" or "/" in place else f"{place}/0"
