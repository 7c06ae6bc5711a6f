"""Where what can be made anew is kept: compiled code, plans of engines, which engine was the fastest."""

import os
from pathlib import Path


def user_caches() -> Path:
    """``$XDG_CACHE_HOME/adsieve``, or ``~/.cache/adsieve``.

    Where nobody knows a home it is a place where nothing can be made.

    Example:
        >>> user_caches().name
        'adsieve'
    """
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        root = Path(given) if given else Path.home() / ".cache"
    except RuntimeError:
        root = Path(os.devnull)
    return root / "adsieve"
