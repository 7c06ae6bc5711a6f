"""Ads for a request that names none: an exact FAISS search for the largest ``log bid + logit`` of what the bid buys.

Utility is bid times probability, and the logarithm of a small probability is its logit but for a term of about the
probability's own size. So ``log bid(a) + w_h logit_h(q, a)``, with h the head that the ad's objective pays for, orders
ads nearly as utility does, and it is an inner product::

    [w_h q_h, w_h, 1] . [v_a, b_a, log bid(a)]  +  w_h c_h        q_h, v_a of D dimensions; b_a and c_h the biases

Ads are grouped by head, one flat index of D + 2 dimensions a head, each ad stored once. Ads that pay for the impression
need no search: their bid orders them. The caller takes more than it needs and ranks them by exact utility.

The files are FAISS's own (``IndexFlatIP``), written as a stream and mapped, so that workers share them. Shapes: A ads,
H heads, D width of a head's vector.
"""

from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np

from contracts.errors import ArtifactError
from indexing.arrays import ArrayWriter, map_array

IMPRESSION = -1
LOWEST_LOG_BID = -100.0

_COUNT_AT, _SIZE_BYTES = 8, 8  # in the header of a flat index: its rows after fourcc and dim, its values at the end


class RetrievalWriter:
    """Writes the groups of an index in batches.

    Args:
        directory: Directory to create.
        num_heads: H.
        head_dim: D.
    """

    def __init__(self, directory: Path, *, num_heads: int, head_dim: int) -> None:
        directory.mkdir()
        self._directory, self._head_dim, self._num_rows = directory, head_dim, 0
        self._flat = {head: _FlatWriter(directory / f"head-{head}.faiss", head_dim + 2) for head in range(num_heads)}
        self._rows = {head: ArrayWriter(directory / f"head-{head}.npy", np.int32) for head in range(num_heads)}
        self._impressions: list[tuple[np.ndarray, np.ndarray]] = []

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
        self._impressions.append((rows[paid], log_bids[paid]))

    def finish(self) -> None:
        """Complete the files."""
        for head, flat in self._flat.items():
            flat.close()
            self._rows[head].close()
        rows, log_bids = (np.concatenate(part) for part in zip(*self._impressions, strict=True))
        order = np.argsort(-log_bids, kind="stable")
        np.save(self._directory / "impression.npy", rows[order])
        np.save(self._directory / "impression-log-bids.npy", log_bids[order])


class Retrieval:
    """The groups of an index, mapped."""

    def __init__(
        self, groups: "dict[int, _Group]", impression_rows: np.ndarray, impression_log_bids: np.ndarray
    ) -> None:
        self._groups, self._impression_rows, self._log_bids = groups, impression_rows, impression_log_bids

    @classmethod
    def open(cls, directory: Path, *, num_heads: int, head_dim: int) -> "Retrieval":
        """Map the files that ``RetrievalWriter`` wrote.

        Raises:
            ArtifactError: A file is missing or does not fit the others.
        """
        groups = {head: _Group.open(directory, head, head_dim) for head in range(num_heads)}
        try:
            rows, log_bids = (np.load(directory / f"impression{part}.npy") for part in ("", "-log-bids"))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{directory}: not the retrieval block of an index: {error}") from error
        return cls(groups, rows, log_bids)

    def search(
        self, query_embedding: np.ndarray, head_weights: np.ndarray | None, k: int, allowed: np.ndarray | None
    ) -> np.ndarray:
        """Return at most ``k`` rows, best first; see ``indexing.index.Index.search``."""
        weights = np.ones(len(query_embedding)) if head_weights is None else head_weights
        found = [self._best_impressions(k, allowed)]
        for head, group in self._groups.items():
            if weights[head] != 0:
                found.append(group.search(query_embedding[head], float(weights[head]), k, allowed))
        rows, scores = (np.concatenate(part) for part in zip(*found, strict=True))
        return rows[np.argsort(-scores, kind="stable")[:k]]

    def _best_impressions(self, k: int, allowed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        places = (
            np.arange(len(self._impression_rows)) if allowed is None else np.flatnonzero(allowed[self._impression_rows])
        )
        return self._impression_rows[places[:k]].astype(np.int64), self._log_bids[places[:k]]


@dataclass(frozen=True)
class _Group:
    """Ads whose bid pays for one head: a flat index over them, and their rows in the whole index."""

    index: faiss.Index
    rows: np.ndarray

    @classmethod
    def open(cls, directory: Path, head: int, head_dim: int) -> "_Group":
        path = directory / f"head-{head}.faiss"
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
            rows = map_array(directory / f"head-{head}.npy")
        except (OSError, ValueError, RuntimeError) as error:
            raise ArtifactError(f"{path}: not a retrieval group: {error}") from error
        if index.d != head_dim + 2 or index.ntotal != len(rows):
            raise ArtifactError(
                f"{path}: {index.ntotal} ads of {index.d} dimensions, expected {len(rows)} of {head_dim + 2}"
            )
        return cls(index, rows)

    def search(
        self, query: np.ndarray, weight: float, k: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        parameters = None
        if allowed is not None:
            mine = allowed[self.rows]
            k = min(k, int(mine.sum()))
            bits = np.packbits(mine, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(mine), faiss.swig_ptr(bits))
            parameters = faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
        k = min(k, len(self.rows))
        if k == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        asked = np.r_[weight * query[:-1], 1.0].astype(np.float32)
        scores, places = self.index.search(asked[None], k, params=parameters)
        return self.rows[places[0]].astype(np.int64), scores[0] + np.float32(weight * query[-1])


class _FlatWriter:
    """Streams rows into the file of a flat inner-product index, which FAISS itself would keep in memory.

    The header is FAISS's own for an empty index; the number of rows and of values are filled in at the end.
    """

    def __init__(self, path: Path, dim: int) -> None:
        self._dim, self._num_rows = dim, 0
        self._header = bytes(faiss.serialize_index(faiss.IndexFlatIP(dim)))
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close
        self._file.write(self._header)

    def append(self, rows: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(rows, np.float32).data)
        self._num_rows += len(rows)

    def close(self) -> None:
        for at, value in ((_COUNT_AT, self._num_rows), (len(self._header) - _SIZE_BYTES, self._num_rows * self._dim)):
            self._file.seek(at)
            self._file.write(value.to_bytes(_SIZE_BYTES, "little"))
        self._file.close()


def log_bid(bids: np.ndarray) -> np.ndarray:
    """Logarithm of bids, finite: a missing bid counts as 1; what cannot be bid (negative, infinite) is worth least.

    Example:
        >>> log_bid(np.array([1.0, np.nan, 0.0, -2.0])).tolist()
        [0.0, 0.0, -100.0, -100.0]
    """
    usable = np.isfinite(bids) & (bids > 0)
    logs = np.log(bids, out=np.full(len(bids), LOWEST_LOG_BID, np.float32), where=usable)
    return np.where(np.isnan(bids), np.float32(0), np.maximum(logs, np.float32(LOWEST_LOG_BID)))
