"""Writes single lines of YAML by hand, where each line carries a comment that a library would drop."""

import json
import re
from collections.abc import Mapping, Sequence

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_BREAKS = str.maketrans({"\n": " ", "\r": " ", "\t": " "})


def quoted(text: str) -> str:
    """A text as a YAML scalar, in quotes where any reader might take it for something else.

    Example:
        >>> quoted("country"), quoted("no"), quoted("a: b")
        ('country', '"no"', '"a: b"')
    """
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


def flow(value: object) -> str:
    """Plain data on one line.

    Example:
        >>> flow({"side": "ad", "dims": [4, None], "shared": True})
        '{side: ad, dims: [4, null], shared: true}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{quoted(str(key))}: {flow(part)}" for key, part in value.items()) + "}"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(flow, value)) + "]"
    return json.dumps(value)


def commented(text: str) -> str:
    """A comment on one line.

    Example:
        >>> commented("two\\nlines")
        '# two lines'
    """
    return f"# {text.translate(_BREAKS)}"
