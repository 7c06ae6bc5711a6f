"""Ids that stand in the body of a request: each becomes a ``str`` only where somebody asks for it.

An answer in JSON has them as the request did, so that most never do.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import msgspec
import numpy as np

from contracts import compiled
from indexing.id_keys import HEAD, Keys

_END = "\0"
_USUAL_BYTES = 40
"""Of an id: room that is tried first, as adding up what is needed takes longer."""


class _Texts(Sequence[str]):
    """Texts that are a list once somebody asks for one, and equal to any other sequence of the same ones."""

    @cached_property
    def _all(self) -> list[str]:
        raise NotImplementedError

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


class IdTexts(_Texts):
    """A list of ids, equal to any other sequence of the same texts; never written to.

    Args:
        keys: Of the ids, which are printable ASCII without quotes and backslashes.

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


class ChosenTexts(_Texts):
    """Some of the ids in a body, equal to any other sequence of the same texts; never written to.

    Args:
        ids: All of them.
        places: Which [K], in their order, int64.

    Example:
        >>> from indexing.id_keys import text_keys
        >>> chosen = ChosenTexts(IdTexts(text_keys(["ad-1", "ad-2", "ad-3"])), np.array([2, 0]))
        >>> list(chosen), chosen.json()
        (['ad-3', 'ad-1'], b'["ad-3","ad-1"]')
    """

    def __init__(self, ids: IdTexts, places: np.ndarray) -> None:
        self._ids, self._places = ids, places

    @cached_property
    def _all(self) -> list[str]:
        return self._ids.at(self._places)

    def json(self) -> bytes:
        """The texts as a list in JSON."""
        places, keys = self._places, self._ids.keys
        if (kernels := compiled.kernels()) is None:
            return msgspec.json.encode(self._all)
        num_bytes = int(keys.lengths[places].sum()) if keys.has_long else HEAD * len(places)
        listed = np.empty(num_bytes + 3 * len(places) + 10, np.uint8)
        return listed[: kernels.list_texts(keys.data, keys.starts, keys.lengths, places, listed)].tobytes()

    def __len__(self) -> int:
        return len(self._places)


def texts_at(ids: Sequence[str], places: np.ndarray) -> list[str]:
    """The texts at these places [K] of a list, or of ids in a body."""
    return ids.at(places) if isinstance(ids, IdTexts) else [ids[place] for place in places.tolist()]


def chosen_texts(ids: Sequence[str], places: np.ndarray) -> Sequence[str]:
    """As :func:`texts_at`, for an answer."""
    return ChosenTexts(ids, places) if isinstance(ids, IdTexts) else [ids[place] for place in places.tolist()]
