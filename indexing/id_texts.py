"""Ids that stand in the body of a request: each becomes a ``str`` only where somebody asks for it."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np

from contracts import compiled
from indexing.id_keys import Keys

_END = "\0"
_USUAL_BYTES = 40
"""Of an id: room that is tried first, as adding up what is needed takes longer."""


class IdTexts(Sequence[str]):
    """A list of ids, equal to any other sequence of the same texts; never written to.

    Args:
        keys: Of the ids, whose ``data`` is ASCII without NUL.

    Example:
        >>> from indexing.id_keys import text_keys
        >>> ids = IdTexts(text_keys(["ad-1", "ad-2", "ad-3"]))
        >>> ids[1], ids.at(np.array([2, 0])), ids == ["ad-1", "ad-2", "ad-3"]
        ('ad-2', ['ad-3', 'ad-1'], True)
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    @cached_property
    def _all(self) -> list[str]:
        return self.at(np.arange(len(self)))

    def at(self, places: np.ndarray) -> list[str]:
        """The texts at these places [K]."""
        if len(places) == 0:
            return []
        keys = self.keys
        if (kernels := compiled.kernels()) is None:
            return [keys.text(place).decode("ascii") for place in places.tolist()]
        joined = np.empty(_USUAL_BYTES * len(places), np.uint8)
        end = kernels.join_texts(keys.data, keys.starts, keys.lengths, places, joined)
        if end < 0:
            joined = np.empty(int(keys.lengths[places].sum()) + len(places), np.uint8)
            end = kernels.join_texts(keys.data, keys.starts, keys.lengths, places, joined)
        return joined[: end - 1].tobytes().decode("ascii").split(_END)

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self._all[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str) and self._all == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all)


def texts_at(ids: Sequence[str], places: np.ndarray) -> list[str]:
    """The texts at these places [K] of a list, or of ids in a body."""
    return ids.at(places) if isinstance(ids, IdTexts) else [ids[place] for place in places.tolist()]
