"""Names that become names of files: what a person calls, as scenarios, and what commands make of it, as versions."""

import re
from typing import Annotated

import msgspec

from contracts.errors import InputError

AUTO = "auto"
"""What a request asks for that leaves each ad to its own scenario; no scenario is called so."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_MADE = r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}"
MadeName = Annotated[str, msgspec.Meta(pattern=rf"^{_MADE}\Z")]
"""A version or the id of a release, which holds the name of its scenario. In a file that says anything else, such as
``../x``, it is no such name, so that nothing outside of a store is ever read or written in its stead.
"""
MadeNameOrEmpty = Annotated[str, msgspec.Meta(pattern=rf"^({_MADE})?\Z")]
_LONG = 80


def is_name(value: str) -> bool:
    """Whether ``value`` can be a file name as ``check_name`` expects it."""
    return _NAME.fullmatch(value) is not None


def check_name(value: str, what: str) -> str:
    """Return ``value`` when it can be a file name: letters, digits, dot, underscore and dash, at most 80.

    Example:
        >>> check_name("shopping", "scenario")
        'shopping'
    """
    if not is_name(value):
        raise InputError(
            f"{what}: expected 1 to 80 ASCII letters, digits, '.', '_', '-', the first no sign, "
            f"got {shortened(value)!r}"
        )
    return value


def check_scenario(value: str) -> str:
    """Return ``value`` when a scenario can be called so: a name that ``check_name`` takes, and not ``auto``.

    Example:
        >>> check_scenario("video-2")
        'video-2'
    """
    if value == AUTO:
        raise InputError(f"scenario: expected another name than {AUTO!r}, by which requests ask for all scenarios")
    return check_name(value, "scenario")


def check_made_name(value: str, what: str) -> str:
    """Return ``value`` when it can be a version or the id of a release.

    Example:
        >>> check_made_name("index-shopping-683f2e23215c", "version")
        'index-shopping-683f2e23215c'
    """
    try:
        return msgspec.convert(value, MadeName)
    except msgspec.ValidationError:
        raise InputError(
            f"{what}: expected 1 to 120 ASCII letters, digits, '.', '_', '-', the first no sign, "
            f"got {shortened(value)!r}"
        ) from None


def shortened(text: str) -> str:
    """What somebody typed or sent, for a message: its beginning where it is long.

    Example:
        >>> shortened("ab" * 50)[-7:], shortened("shopping")
        ('abab...', 'shopping')
    """
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."
