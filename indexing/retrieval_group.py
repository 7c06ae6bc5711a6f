"""One group of ads, those whose bid pays for one head, and how it is searched with and without a filter.

A filter costs FAISS a call for every ad that it compares. Where most ads are allowed it is cheaper to fetch a few more
and to drop what is not; where few are, more lists have to be looked into, in the end all of them.

Shapes: A ads of the index, N of the group, D width of a head's vector.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np

from contracts.errors import ArtifactError
from indexing.arrays import map_array
from indexing.retrieval_files import map_group

MOST_SHARE = 0.25
"""Share of allowed ads from which on more are fetched and some dropped."""
_FETCH_MORE, _AND_MORE = 1.2, 64

Found = tuple[np.ndarray, np.ndarray]
"""Rows of the index, int64, best first, and their scores."""


class DeviceSearch(Protocol):
    """Searches a copy of a group on a device."""

    def __call__(self, asked: np.ndarray, k: int, num_probes: int) -> tuple[np.ndarray, np.ndarray] | None:
        """As FAISS's own search, scores and ids, [1, k] each; None where the device cannot fetch so many."""


@dataclass(frozen=True)
class Allowed:
    """Which ads of an index a search may find.

    Args:
        mask: Bool [A].
        count: How many.
    """

    mask: np.ndarray
    count: int

    @classmethod
    def of(cls, mask: np.ndarray) -> "Allowed":
        return cls(mask, int(np.count_nonzero(mask)))

    @property
    def share(self) -> float:
        return self.count / max(len(self.mask), 1)

    @cached_property
    def bits(self) -> np.ndarray:
        """A bit an ad, as FAISS reads them."""
        return np.packbits(self.mask, bitorder="little")


@dataclass(frozen=True)
class Group:
    """A mapped index of one head.

    Args:
        index: Flat, its ids the places in ``rows``; or inverted lists, their ids rows of the whole index.
        rows: Of a flat index, the row of each ad, int32 [N], ascending; else None.
        device: Searches a copy on a device, where there is one.
    """

    index: Any
    rows: np.ndarray | None
    device: DeviceSearch | None = None

    @classmethod
    def open(cls, directory: Path, head: int, dim: int) -> "Group":
        """Map the group of a head; ArtifactError where its files are damaged or do not fit."""
        path = directory / f"head-{head}.faiss"
        index = map_group(path, dim)
        if isinstance(index, faiss.IndexIVF):
            return cls(index, None)
        try:
            rows = map_array(directory / f"head-{head}.npy")
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path}: not a retrieval group: {error}") from error
        if index.ntotal != len(rows):
            raise ArtifactError(f"{path}: {index.ntotal} ads, expected {len(rows)}")
        return cls(index, rows)

    def __len__(self) -> int:
        return self.index.ntotal

    @property
    def num_lists(self) -> int:
        return 1 if self.rows is not None else self.index.nlist

    def search(self, query: np.ndarray, weight: float, k: int, allowed: Allowed | None) -> Found:
        """At most ``k`` ads of largest ``log bid + weight * logit``.

        Args:
            query: Query embedding of the head [D+2].
        """
        asked = np.r_[weight * query[:-1], 1.0].astype(np.float32)[None]
        if allowed is None:
            rows, scores = self._nearest(asked, min(k, len(self)), 1.0)
        else:
            rows, scores = self._among(asked, min(k, len(self), allowed.count), allowed)
        return rows, scores + np.float32(weight * query[-1])

    def _among(self, asked: np.ndarray, k: int, allowed: Allowed) -> Found:
        fetched = math.ceil(k * _FETCH_MORE / max(allowed.share, MOST_SHARE)) + _AND_MORE
        if allowed.share >= MOST_SHARE:
            rows, scores = self._nearest(asked, min(fetched, len(self)), allowed.share)
            kept = np.flatnonzero(allowed.mask[rows])[:k]
            if len(kept) == k or len(rows) == len(self):
                return rows[kept], scores[kept]
        return self._selected(asked, k, allowed)

    def _nearest(self, asked: np.ndarray, k: int, share: float) -> Found:
        """The best ``k`` of all; ``share`` of them is wanted."""
        if k == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        probes = self._probes(share)
        found = None if self.device is None else self.device(asked, k, probes)
        if found is None:
            found = self.index.search(asked, k, params=self._parameters(probes))
        rows, scores = self._rows_of(*found)
        if len(rows) < k and probes < self.num_lists:
            return self._nearest(asked, k, 0.0)
        return rows, scores

    def _selected(self, asked: np.ndarray, k: int, allowed: Allowed) -> Found:
        """The best ``k`` allowed ones: FAISS asks for each ad whether it is."""
        bits, num_ids = allowed.bits, len(allowed.mask)
        if self.rows is not None:
            mine = allowed.mask.take(self.rows)
            k, bits, num_ids = min(k, int(np.count_nonzero(mine))), np.packbits(mine, bitorder="little"), len(mine)
        if k == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        selector = faiss.IDSelectorBitmap(num_ids, faiss.swig_ptr(bits))
        probes = self._probes(allowed.share)
        found = self._rows_of(*self.index.search(asked, k, params=self._parameters(probes, selector)))
        if len(found[0]) < k and probes < self.num_lists:
            found = self._rows_of(*self.index.search(asked, k, params=self._parameters(self.num_lists, selector)))
        return found

    def _probes(self, share: float) -> int:
        """Lists to look into where ``share`` of the ads may be found: all where it is 0.

        The best allowed ads stand deeper in the order of all, by 1 / share; the lists that hold them grow slower.
        """
        if self.rows is not None or share == 0:
            return self.num_lists
        return min(math.ceil(self.index.nprobe / math.sqrt(share)), self.num_lists)

    def _parameters(self, probes: int, selector: faiss.IDSelector | None = None) -> faiss.SearchParameters | None:
        if self.rows is None:
            return faiss.SearchParametersIVF(sel=selector, nprobe=probes)  # type: ignore[call-arg]
        return None if selector is None else faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]

    def _rows_of(self, scores: np.ndarray, ids: np.ndarray) -> Found:
        found = ids[0] >= 0
        kept = ids[0][found]
        return kept if self.rows is None else self.rows[kept].astype(np.int64), scores[0][found]
