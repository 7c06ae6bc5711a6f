"""Ids as words of eight bytes, and their hash: what the id table compares and looks up, without a loop over ids.

Shapes: K ids, W words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

SHORT = 64
"""Ids of more bytes are hashed and compared one by one. Key data must be readable this far past its last id."""

_WORD = 8
_PADDING = b"\0" * SHORT
_WORD_FACTORS = np.array(  # odd constants of xxHash and wyhash
    [
        *(0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93),
        *(0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3),
    ],
    np.uint64,
)
_LENGTH_FACTOR = np.uint64(0x1D8E4E27C47D124F)
_MIX_1, _MIX_2, _MIX_SHIFT = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(33)
# _MASKS[n, w] keeps those of the eight bytes of word w that belong to an id of n bytes (little-endian).
_MASKS = np.array(
    [
        [(1 << (8 * min(max(n - _WORD * word, 0), _WORD))) - 1 for word in range(SHORT // _WORD)]
        for n in range(SHORT + 1)
    ],
    np.uint64,
)


@dataclass(frozen=True)
class Keys:
    """K ids, ready to be hashed and compared.

    Args:
        data: The ids' UTF-8 and padding, uint8.
        starts: Where each id begins in ``data``, int64 [K].
        lengths: Bytes of each id, int64 [K]; tells padding from NUL characters, so it is hashed and compared too.
        words: uint64 [K, W]: an id of at most ``SHORT`` bytes padded with zeros, a longer one as its 128-bit digest.
    """

    data: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    words: np.ndarray

    def text(self, position: int) -> bytes:
        """The UTF-8 of one id."""
        start = self.starts[position]
        return self.data[start : start + self.lengths[position]].tobytes()


def text_keys(ids: Sequence[str]) -> Keys:
    """Keys of a list of texts. A lone surrogate is no UTF-8 and so equals no stored id."""
    text = "".join(ids)
    if text.isascii():
        data, lengths = text.encode(), np.fromiter(map(len, ids), np.int64, len(ids))
    else:
        encoded = [text.encode("utf-8", "surrogatepass") for text in ids]
        data, lengths = b"".join(encoded), np.fromiter(map(len, encoded), np.int64, len(ids))
    return stored_keys(np.frombuffer(data + _PADDING, np.uint8), np.cumsum(lengths) - lengths, lengths)


def array_bytes(ids: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the UTF-8 of all ids, uint8, and the bytes of each, int64 [K]. There are no nulls."""
    _, offset_buffer, data_buffer = ids.buffers()
    if data_buffer is None or not len(ids):
        return np.zeros(0, np.uint8), np.zeros(len(ids), np.int64)
    offsets = np.frombuffer(offset_buffer, np.int32)[ids.offset : ids.offset + len(ids) + 1].astype(np.int64)
    return np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]], np.diff(offsets)


def stored_keys(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Keys:
    """Keys of ids that lie in ``data``."""
    is_short = lengths <= SHORT
    longest = int(np.max(lengths, initial=1, where=is_short))
    num_words = max(-(-longest // _WORD), 1 if is_short.all() else 2)
    words = words_at(data, starts, np.minimum(lengths, SHORT), num_words)
    for at in np.flatnonzero(~is_short):
        digest = xxhash.xxh3_128_intdigest(data[starts[at] : starts[at] + lengths[at]].tobytes())
        words[at] = 0
        words[at, :2] = digest & 0xFFFFFFFFFFFFFFFF, digest >> 64
    return Keys(data, starts, lengths, words)


def words_at(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, num_words: int) -> np.ndarray:
    """Return the bytes from each start on, zero after each length (at most ``SHORT``), uint64 [K, W]."""
    width = num_words * _WORD
    windows = np.ndarray((max(len(data) - width + 1, 0),), f"V{width}", data, strides=(1,))
    return windows[starts].view(np.uint64).reshape(len(starts), num_words) & _MASKS[lengths, :num_words]


def hashes(keys: Keys) -> np.ndarray:
    """Return a 64-bit hash of each key, uint64 [K]; trailing zero words do not change it."""
    mixed = _mix(keys.words) * _WORD_FACTORS[: keys.words.shape[1]]
    return _mix(mixed.sum(1, dtype=np.uint64) + keys.lengths.astype(np.uint64) * _LENGTH_FACTOR)


def _mix(values: np.ndarray) -> np.ndarray:
    """Finaliser of MurmurHash3: every input bit reaches every output bit; 0 stays 0."""
    values = (values ^ (values >> _MIX_SHIFT)) * _MIX_1
    values = (values ^ (values >> _MIX_SHIFT)) * _MIX_2
    return values ^ (values >> _MIX_SHIFT)
