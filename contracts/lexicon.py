"""Texts by group with an id each, in arrays that compiled loops look them up in."""

from collections.abc import Iterable

import numpy as np
import xxhash

BOOLEANS = b"01"
"""The texts of false and true, with which the texts of a lexicon begin."""

Entry = tuple[int, str, int]
"""Group, text, id; no text stands twice in a group."""


class Lexicon:
    """Entries in a table of open addressing, as ``contracts.kernels.write_row`` reads it.

    Args:
        entries: What is in it.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        known = [(group, text.encode(errors="surrogatepass"), own) for group, text, own in entries]
        size = 1 << (2 * len(known)).bit_length()
        slots = np.full((size, 5), -1, np.int64)
        is_free, texts, end = [True] * size, [BOOLEANS], len(BOOLEANS)
        for group, text, own in known:
            hashed = xxhash.xxh64_intdigest(text)
            place = hashed & (size - 1)
            while not is_free[place]:
                place = (place + 1) & (size - 1)
            is_free[place] = False
            slots[place, :4] = group, end, len(text), own
            slots.view(np.uint64)[place, 4] = hashed
            texts.append(text)
            end += len(text)
        self.slots, self.texts = slots, np.frombuffer(b"".join(texts) + b"\0" * 64, np.uint8)
