"""From the text of a value to its row in an embedding table: by hash, or by an exact vocabulary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from contracts.schema import NUM_RESERVED, OUT_OF_VOCABULARY, Table

TextIds = Callable[[Sequence[str]], np.ndarray]  # n texts -> int32 [n], none of them padding or missing


def hash_ids(texts: Sequence[str], buckets: int) -> np.ndarray:
    """Ids of a hashed table: ``3 + xxh64(utf-8 text, seed 0) % (buckets - 3)``; distinct texts may share one.

    Example:
        >>> hash_ids(["DE", "DE", "Köln"], buckets=100).tolist()
        [67, 67, 14]
    """
    digests = np.fromiter(map(xxhash.xxh64_intdigest, map(str.encode, texts)), dtype=np.uint64, count=len(texts))
    return (digests % np.uint64(buckets - NUM_RESERVED)).astype(np.int32) + NUM_RESERVED


@dataclass(frozen=True)
class HashedIds:
    """:func:`hash_ids` of a table of so many rows."""

    buckets: int

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return hash_ids(texts, self.buckets)


def vocabulary_ids(texts: Sequence[str], known: dict[str, int]) -> np.ndarray:
    """Ids of a vocabulary: the value's own row where it is known exactly, else 2, never a neighbour's."""
    return np.fromiter((known.get(text, OUT_OF_VOCABULARY) for text in texts), dtype=np.int32, count=len(texts))


@dataclass(frozen=True, eq=False)
class VocabularyIds:
    """:func:`vocabulary_ids` of a vocabulary."""

    known: dict[str, int]

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return vocabulary_ids(texts, self.known)


def text_ids(table: Table) -> TextIds:
    """The function from texts to ids of one fitted table; ConfigError while its vocabulary is not fitted."""
    if table.vocabulary is None:
        return HashedIds(table.num_rows)
    return VocabularyIds({value: NUM_RESERVED + position for position, value in enumerate(table.vocabulary)})
