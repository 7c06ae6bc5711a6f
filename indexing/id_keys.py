"""Ids as keys of 16 bytes and their hashes: what the id table compares and looks up, without a loop over ids.

The bytes 0xFE and 0xFF occur in no UTF-8: a head tells all ids of at most 16 bytes apart, and these from longer ones.

Shapes: K ids, W words.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from contracts import compiled

HEAD = 16
"""Bytes of a head."""
SHORT = 64
"""Ids of more bytes are hashed and compared one by one. Key data must be readable this far past its last id."""

_WORD = 8
_PADDING = b"\0" * SHORT
_FACTORS = np.array(  # odd constants of xxHash and wyhash
    [
        *(0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93),
        *(0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3),
    ],
    np.uint64,
)
_LENGTH_FACTOR = np.uint64(0x1D8E4E27C47D124F)
_MIX_1, _MIX_2, _MIX_SHIFT = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(33)
_HALF = np.uint64(32)
_LONG_MARK, _LONG_BITS = np.uint64(0xFE << 56), np.uint64((1 << 56) - 1)
# _MASKS[n, w] keeps those of the eight bytes of word w that belong to an id of n bytes (little-endian).
_MASKS = np.array(
    [
        [(1 << (8 * min(max(n - _WORD * word, 0), _WORD))) - 1 for word in range(SHORT // _WORD)]
        for n in range(SHORT + 1)
    ],
    np.uint64,
)
_HEAD_FILL = ~_MASKS[: HEAD + 1, : HEAD // _WORD]


class Keys(msgspec.Struct, frozen=True, dict=True):
    """K ids, ready to be looked up, in as many tables as hold such ids.

    Args:
        data: The ids' UTF-8 and padding, uint8.
        starts: Where each id begins in ``data``, int64 [K].
        lengths: Bytes of each id, int64 [K].
        heads: uint64 [K, 2]. An id of at most 16 bytes, then bytes 0xFF; of a longer one its first 8 bytes, 56 bits of
            the hash of all of it, and the byte 0xFE.
        has_long: Whether an id of more than 16 bytes is among them.
    """

    data: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    heads: np.ndarray
    has_long: bool

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def hashes(self) -> np.ndarray:
        """A 64-bit hash of each key, uint64 [K], computed once."""
        kept = self.__dict__  # no cached_property, whose lock takes longer than the hashes of a request
        if "hashes" not in kept:
            kept["hashes"] = hashes(self)
        found: np.ndarray = kept["hashes"]
        return found

    def take(self, positions: np.ndarray) -> "Keys":
        """Keys of some of the ids."""
        return Keys(self.data, self.starts[positions], self.lengths[positions], self.heads[positions], self.has_long)

    def text(self, position: int) -> bytes:
        """The UTF-8 of one id."""
        start = self.starts[position]
        return self.data[start : start + self.lengths[position]].tobytes()


def text_keys(ids: Sequence[str]) -> Keys:
    """Keys of a list of texts. A lone surrogate is no UTF-8 and so equals no stored id."""
    data = np.frombuffer("\0".join(ids).encode("utf-8", "surrogatepass") + b"\0" + _PADDING, np.uint8)
    if (kernels := compiled.kernels()) is not None:
        starts, lengths, heads = (
            np.empty(len(ids), np.int64),
            np.empty(len(ids), np.int64),
            np.empty((len(ids), 2), np.uint64),
        )
        longest = kernels.split_texts(data, starts, lengths, heads)
        if longest >= 0:
            return found_keys(data, starts, lengths, heads, longest)
    ends = np.flatnonzero(data[: len(data) - SHORT] == 0)
    if len(ends) != len(ids):  # an id holds NUL, or there is none
        lengths = np.array([len(text.encode("utf-8", "surrogatepass")) for text in ids], np.int64)
        ends = np.cumsum(lengths + 1) - 1
    starts = np.empty_like(ends)
    starts[:1] = 0
    np.add(ends[:-1], 1, out=starts[1:])
    return stored_keys(data, starts, ends - starts)


def found_keys(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, heads: np.ndarray, longest: int) -> Keys:
    """Keys of ids that a kernel found in ``data``, whose heads are right but for those of more than 16 bytes."""
    return _with_long_heads(Keys(data, starts, lengths, heads, longest > HEAD))


def array_bytes(ids: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the UTF-8 of all ids, uint8, and the bytes of each, int64 [K]. There are no nulls."""
    _, offset_buffer, data_buffer = ids.buffers()
    if data_buffer is None or not len(ids):
        return np.zeros(0, np.uint8), np.zeros(len(ids), np.int64)
    offsets = np.frombuffer(offset_buffer, np.int32)[ids.offset : ids.offset + len(ids) + 1].astype(np.int64)
    return np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]], np.diff(offsets)


def stored_keys(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Keys:
    """Keys of ids that lie in ``data``."""
    has_long = bool(np.max(lengths, initial=0) > HEAD)
    in_head = np.minimum(lengths, HEAD) if has_long else lengths
    heads = _windows(data, starts, HEAD // _WORD)
    heads |= _HEAD_FILL.take(in_head, axis=0)
    return _with_long_heads(Keys(data, starts, lengths, heads, has_long))


def _with_long_heads(keys: Keys) -> Keys:
    """Fill in the heads of ids of more than 16 bytes."""
    if keys.has_long:
        long = np.flatnonzero(keys.lengths > HEAD)
        hashed = _long_hashes(keys.data, keys.starts[long], keys.lengths[long])
        keys.heads[long, 1] = (hashed & _LONG_BITS) | _LONG_MARK
    return keys


def hashes(keys: Keys) -> np.ndarray:
    """Return a 64-bit hash of each key, uint64 [K]; it does not depend on the other keys."""
    if (kernels := compiled.kernels()) is not None:
        hashed = np.empty(len(keys), np.uint64)
        kernels.head_hashes(keys.heads, hashed)
        return hashed
    first, second = keys.heads[:, 0], keys.heads[:, 1]
    total = first >> _HALF
    total ^= first
    total *= _FACTORS[0]
    total += second * _FACTORS[1]
    return _mix(total)


def may_repeat(keys: Keys) -> bool:
    """Whether an id stands twice among these, or an odd chance says so."""
    if (kernels := compiled.kernels()) is not None:
        repeated: bool = kernels.may_repeat(keys.hashes)
        return repeated
    ordered = np.sort(keys.hashes)
    return bool((ordered[1:] == ordered[:-1]).any())


def equal_texts(one: Keys, data: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Compare ids with the texts of the same lengths that lie in ``data``, byte by byte, bool [K]."""
    lengths = np.minimum(one.lengths, SHORT)
    num_words = -(-int(lengths.max(initial=1)) // _WORD)
    ours = _words_at(one.data, one.starts, lengths, num_words)
    equal = (ours == _words_at(data, starts, lengths, num_words)).all(1)
    for at in np.flatnonzero(equal & (one.lengths > SHORT)):
        equal[at] = data[starts[at] : starts[at] + one.lengths[at]].tobytes() == one.text(int(at))
    return equal


def _long_hashes(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Hash ids of more than 16 bytes, uint64 [K]."""
    in_words = np.minimum(lengths, SHORT)
    words = _words_at(data, starts, in_words, -(-int(in_words.max()) // _WORD))
    total = lengths.astype(np.uint64) * _LENGTH_FACTOR
    for word, factor in zip(words.T, _FACTORS, strict=False):
        total += (word ^ (word >> _HALF)) * factor
    total = _mix(total)
    for at in np.flatnonzero(lengths > SHORT):
        total[at] = xxhash.xxh3_64_intdigest(data[starts[at] : starts[at] + lengths[at]].tobytes())
    return total


def _words_at(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, num_words: int) -> np.ndarray:
    """Return the bytes from each start on, zero after each length (at most ``SHORT``), uint64 [K, W]."""
    return _windows(data, starts, num_words) & _MASKS[:, :num_words].take(lengths, axis=0)


def _windows(data: np.ndarray, starts: np.ndarray, num_words: int) -> np.ndarray:
    """Return the words from each start on, uint64 [K, W]."""
    width = num_words * _WORD
    windows = np.ndarray((max(len(data) - width + 1, 0),), f"V{width}", data, strides=(1,))
    return windows[starts].view(np.uint64).reshape(len(starts), num_words)


def _mix(values: np.ndarray) -> np.ndarray:
    """Finaliser of MurmurHash3, in place: every input bit reaches every output bit."""
    for factor in (_MIX_1, _MIX_2):
        values ^= values >> _MIX_SHIFT
        values *= factor
    values ^= values >> _MIX_SHIFT
    return values
