"""The features of a request that stand in its JSON body: they become Python objects only where somebody asks."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

_BYTES_OF_ITEM = 2
"""The least, with a comma."""
_ROOMS = (256, 2_048), (1_024, 1 << 16)
"""Values and items: as are usual, then the most; more are left to the decoder."""


class QueryInBody(Mapping[str, Any]):
    """Features of a request, equal to what decoding the body gives; never written to.

    Args:
        data: The body and what may be read behind it, uint8.
        start, end: Where the features begin and end in it.
        values, items, numbers: What is where, as of ``contracts.kernels.read_query``.
        longest: Values of the longest list.
    """

    def __init__(
        self,
        data: np.ndarray,
        start: int,
        end: int,
        values: np.ndarray,
        items: np.ndarray,
        numbers: np.ndarray,
        longest: int,
    ) -> None:
        self.data, self.start, self.end = data, start, end
        self.values_at, self.items_at, self.numbers, self.longest = values, items, numbers, longest

    @cached_property
    def decoded(self) -> dict[str, Any]:
        """The features as any other body has them."""
        found: dict[str, Any] = msgspec.json.decode(self.data[self.start : self.end].tobytes())
        return found

    def __getitem__(self, name: str) -> Any:
        return self.decoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.decoded)

    def __len__(self) -> int:
        return len(self.decoded)

    def __repr__(self) -> str:
        return repr(self.decoded)


def query_in_body(data: np.ndarray, after_name: int, kernels: ModuleType) -> QueryInBody | None:
    """The features behind the field's name; None where they are not plain, or too many.

    Args:
        data: The body and ``TAIL``, uint8.
        after_name: Where the field's name ends.
    """
    end, found = kernels.NO_ROOM, np.empty(4, np.int64)
    for most_values, most_items in _ROOMS:
        room = min((len(data) - after_name) // _BYTES_OF_ITEM, most_items)
        values, items, numbers = np.empty((most_values, 7), np.int64), np.empty((room, 3), np.int64), np.empty(room)
        end = kernels.read_query(data, after_name, values, items, numbers, found)
        if end != kernels.NO_ROOM:
            break
    if end < 0:
        return None
    num_values, num_items, longest, start = found.tolist()
    return QueryInBody(data, start, end, values[:num_values], items[:num_items], numbers[:num_items], longest)
