"""Ids for requests that bring none: 32 random hexadecimal digits each."""

import os

_LOT = 256
_drawn: list[str] = []
os.register_at_fork(after_in_child=_drawn.clear)  # a child would give the ids that its parent gives


def new_request_id() -> str:
    """An id that no other request has; drawn in lots, as each draw asks the kernel. In any thread."""
    try:
        return _drawn.pop()
    except IndexError:
        digits = os.urandom(16 * _LOT).hex()
    first, *others = [digits[start : start + 32] for start in range(0, len(digits), 32)]
    _drawn.extend(others)
    return first
