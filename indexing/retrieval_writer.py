"""Writes the groups of an index in batches, in bounded memory. Shapes: B ads, H heads, D width of a head's vector."""

from pathlib import Path

import numpy as np

from indexing.arrays import ArrayWriter, release_pages
from indexing.retrieval import IMPRESSION, log_bid
from indexing.retrieval_files import FlatWriter

_KEYS = 1 << 20
"""Ads that pay for the impression which are read at once, from the mapped file that they were sorted in."""
_SIGN = np.uint32(1 << 31)


class RetrievalWriter:
    """Writes flat groups.

    Args:
        directory: Directory to create.
        num_heads: H.
        head_dim: D.
    """

    def __init__(self, directory: Path, *, num_heads: int, head_dim: int) -> None:
        directory.mkdir()
        self._directory, self._head_dim, self._num_rows = directory, head_dim, 0
        self._flat = {head: FlatWriter(directory / f"head-{head}.faiss", head_dim + 2) for head in range(num_heads)}
        self._rows = {head: ArrayWriter(directory / f"head-{head}.npy", np.int32) for head in range(num_heads)}
        self._keys = ArrayWriter(directory / _KEYS_FILE, np.uint64)

    def append(self, vectors: np.ndarray, bias: np.ndarray, heads: np.ndarray, bids: np.ndarray) -> None:
        """Append the next B ads.

        Args:
            vectors: As they are scored [B, H * D].
            bias: [B, H].
            heads: The head that each ad's objective pays for, or ``IMPRESSION``, int [B].
            bids: [B]; NaN counts as 1.
        """
        log_bids = log_bid(bids)
        rows = np.arange(self._num_rows, self._num_rows + len(heads), dtype=np.int32)
        self._num_rows += len(heads)
        by_head = vectors.reshape(len(vectors), len(self._flat), self._head_dim)
        for head, flat in self._flat.items():
            mine = heads == head
            flat.append(np.c_[by_head[mine, head], bias[mine, head], log_bids[mine]])
            self._rows[head].append(rows[mine])
        paid = heads == IMPRESSION
        self._keys.append(_descending(log_bids[paid], rows[paid]))

    def finish(self) -> None:
        """Complete the files."""
        for head, flat in self._flat.items():
            flat.close()
            self._rows[head].close()
        self._keys.close()
        self._write_impressions()

    def _write_impressions(self) -> None:
        """Ads that pay for the impression, the highest bid first, equal ones in their order."""
        path = self._directory / _KEYS_FILE
        keys = np.load(path, mmap_mode="r+") if self._keys.num_rows else np.zeros(0, np.uint64)
        keys.sort()
        with (
            ArrayWriter(self._directory / "impression.npy", np.int32) as rows,
            ArrayWriter(self._directory / "impression-log-bids.npy", np.float32) as log_bids,
        ):
            for start in range(0, len(keys), _KEYS):
                part = np.array(keys[start : start + _KEYS])
                rows.append((part & np.uint64(0xFFFFFFFF)).astype(np.int32))
                log_bids.append(_log_bids(part))
                release_pages(keys)
        path.unlink()


_KEYS_FILE = ".impression-keys.npy"


def _descending(log_bids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Keys that sort as descending ``log_bids``, then ascending ``rows``: the bits of a float order as integers do.

    Example:
        >>> keys = _descending(np.array([0.5, -1.0, 2.0, 0.5], np.float32), np.arange(4, dtype=np.int32))
        >>> np.argsort(keys).tolist(), _log_bids(keys).tolist()
        ([2, 0, 3, 1], [0.5, -1.0, 2.0, 0.5])
    """
    bits = (log_bids + np.float32(0)).view(np.uint32)  # no negative zero: it equals zero and has other bits
    ascending = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return (~ascending).astype(np.uint64) << np.uint64(32) | rows.astype(np.uint64)


def _log_bids(keys: np.ndarray) -> np.ndarray:
    ascending = ~(keys >> np.uint64(32)).astype(np.uint32)
    return np.where(ascending & _SIGN, ascending ^ _SIGN, ~ascending).view(np.float32)
