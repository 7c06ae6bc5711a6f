"""Batches of pairs as index gathers: each request and each ad of a batch once, prepared in a background thread.

Shapes: R distinct requests of a batch, A distinct ads, N pairs, T tasks.
"""

import math
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from contracts.encoding import Encoded
from modeling.distributed import ALONE, Ranks
from modeling.examples import Examples

PREFETCHED = 2
"""Batches that are ready before they are asked for."""

T = TypeVar("T")


class SideTensors(NamedTuple):
    """Encoded rows of one side: ids int32 [B, num_ids] and floats float32 [B, num_floats]."""

    ids: Tensor
    floats: Tensor


@dataclass(frozen=True)
class Batch:
    """Pairs of a batch and the distinct rows that they share.

    Args:
        query: The R distinct requests.
        ad: The A distinct ads.
        pair: Pair features of the N pairs; None where the schema has none.
        request_index: int64 [N], rows of ``query``.
        ad_index: int64 [N], rows of ``ad``.
        labels: float32 [N, T], NaN where unknown.
        teacher: float32 [N, T] logits, NaN where there are none.
        weight: float32 [N].
        stage: int8 [N].
        requests: int64 [R] on the CPU, the requests' rows in the examples.
        ads: int64 [A] on the CPU, the ads' rows in the examples.
        rows: int64 [N] on the CPU, the pairs' positions in the examples. Empty in a process whose share of a batch is
            empty: it holds one pair that weighs nothing and has no label, so that it takes part in every exchange.
    """

    query: SideTensors
    ad: SideTensors
    pair: SideTensors | None
    request_index: Tensor
    ad_index: Tensor
    labels: Tensor
    teacher: Tensor
    weight: Tensor
    stage: Tensor
    requests: Tensor
    ads: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def sides(self) -> dict[str, tuple[Tensor, Tensor]]:
        """What ``FeatureTables.forward_sides`` takes: R, A and, where there are pair features, N rows."""
        sides: dict[str, tuple[Tensor, Tensor]] = {"query": self.query, "ad": self.ad}
        return sides if self.pair is None else sides | {"pair": self.pair}


def gather(examples: Examples, rows: np.ndarray, *, device: torch.device | str = "cpu") -> Batch:
    """The batch of some pairs, by position, in the order given."""
    device = torch.device(device)
    requests, request_index = np.unique(examples.request_row[rows], return_inverse=True)
    ads, ad_index = np.unique(examples.ad_row[rows], return_inverse=True)
    return Batch(
        query=_side(examples.query, requests, device),
        ad=_side(examples.ad, ads, device),
        pair=None if examples.pair is None else _side(examples.pair, rows, device),
        request_index=_tensor(request_index, device),
        ad_index=_tensor(ad_index, device),
        labels=_tensor(examples.labels[rows], device),
        teacher=_tensor(examples.teacher[rows], device),
        weight=_tensor(examples.weight[rows], device),
        stage=_tensor(examples.stage[rows], device),
        requests=torch.from_numpy(requests.astype(np.int64)),
        ads=torch.from_numpy(ads.astype(np.int64)),
        rows=torch.from_numpy(rows),
    )


def gather_share(examples: Examples, rows: np.ndarray, ranks: Ranks, *, device: torch.device | str = "cpu") -> Batch:
    """One process's part of the batch of some pairs: whole requests, as ``Ranks.share`` divides them."""
    if ranks.alone:
        return gather(examples, rows, device=device)
    mine = rows[ranks.share(examples.request_row[rows])]
    if len(mine):
        return gather(examples, mine, device=device)
    silent = gather(examples, rows[:1], device=device)
    return replace(
        silent,
        labels=torch.full_like(silent.labels, math.nan),
        weight=torch.zeros_like(silent.weight),
        rows=silent.rows[:0],
    )


class ShuffledBatches:
    """Training batches, shuffled anew each epoch; the order depends on seed and epoch alone.

    Args:
        examples: What to draw from.
        pairs_per_batch: Pairs a batch. Whole requests make it vary by the pairs of one request.
        by: ``request`` keeps the pairs of a request together, so that a batch shares its query rows; ``pair`` shuffles
            pairs alone, for logs with a pair or two a request.
        seed: Of the order.
        device: Where the batches go.
        ranks: Each process gets its share of every batch; the batches are the same for any number of processes.

    Raises:
        ValueError: ``pairs_per_batch`` is not positive.
    """

    def __init__(
        self,
        examples: Examples,
        *,
        pairs_per_batch: int,
        by: Literal["request", "pair"],
        seed: int = 0,
        device: torch.device | str = "cpu",
        ranks: Ranks = ALONE,
    ) -> None:
        if pairs_per_batch < 1:
            raise ValueError(f"pairs_per_batch must be 1 or more, got {pairs_per_batch}")
        self._examples, self._size, self._seed, self._device = examples, pairs_per_batch, seed, device
        self._ranks = ranks
        self._groups = _Groups(examples.request_row) if by == "request" else None

    def __len__(self) -> int:
        """Batches an epoch, about."""
        return math.ceil(len(self._examples) / self._size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from the ``start``-th on."""
        generator = np.random.default_rng((self._seed, epoch))
        if self._groups is None:
            rows = generator.permutation(len(self._examples))
            bounds = np.arange(0, len(rows) + self._size, self._size).clip(max=len(rows))
        else:
            rows, bounds = self._groups.shuffled(generator, self._size)
        pieces = (rows[first:last] for first, last in zip(bounds[start:-1], bounds[start + 1 :], strict=True))
        return prefetch(gather_share(self._examples, piece, self._ranks, device=self._device) for piece in pieces)


def ordered_batches(
    examples: Examples, *, pairs_per_batch: int, device: torch.device | str = "cpu", ranks: Ranks = ALONE
) -> Iterator[Batch]:
    """All pairs once, in their order, for validation and evaluation; of each batch this process's share."""
    bounds = range(0, len(examples), pairs_per_batch)
    pieces = (np.arange(first, min(first + pairs_per_batch, len(examples))) for first in bounds)
    return prefetch(gather_share(examples, piece, ranks, device=device) for piece in pieces)


def prefetch(items: Iterator[T], *, ahead: int = PREFETCHED) -> Iterator[T]:
    """Run an iterator in a thread, a few items ahead of its consumer; its exceptions come out here.

    Example:
        >>> list(prefetch(iter([1, 2, 3])))
        [1, 2, 3]
    """
    ready: queue.Queue[_Prefetched[T]] = queue.Queue(maxsize=ahead)
    stopped = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, ready, stopped), daemon=True, name="prefetch")
    thread.start()
    try:
        while (found := ready.get()).items:
            yield from found.items
        if found.error is not None:
            raise found.error
    finally:
        stopped.set()
        thread.join()


class _Prefetched(NamedTuple, Generic[T]):
    """One item, or none at the end; then perhaps the exception that ended the iterator."""

    items: tuple[T, ...] = ()
    error: BaseException | None = None


def _fill(items: Iterator[T], ready: "queue.Queue[_Prefetched[T]]", stopped: threading.Event) -> None:
    try:
        for item in items:
            _put(_Prefetched((item,)), ready, stopped)
            if stopped.is_set():
                return
        _put(_Prefetched(), ready, stopped)
    except BaseException as error:
        _put(_Prefetched(error=error), ready, stopped)


def _put(found: _Prefetched[T], ready: "queue.Queue[_Prefetched[T]]", stopped: threading.Event) -> None:
    """Wait for room, but not for a consumer that has left."""
    while not stopped.is_set():
        with suppress(queue.Full):
            ready.put(found, timeout=0.1)
            return


class _Groups:
    """The pairs of each request, for shuffling whole requests.

    Args:
        request_row: int [N]; pairs of a request need not stand together.
    """

    def __init__(self, request_row: np.ndarray) -> None:
        # grouping by run would split a request whose pairs are apart; the sort of a sorted array is cheap
        self._pairs = np.argsort(request_row, kind="stable")
        self._counts = np.unique(request_row, return_counts=True)[1]
        self._starts = np.cumsum(self._counts) - self._counts

    def shuffled(self, generator: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions of pairs [N], request by request, and the bounds of batches [batches + 1].

        A batch ends with the request in which it reaches ``size`` pairs.
        """
        order = generator.permutation(len(self._counts))
        counts = self._counts[order]
        ends = np.cumsum(counts)
        within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        rows = self._pairs[np.repeat(self._starts[order], counts) + within]
        last_of_batch = np.flatnonzero(np.diff((ends - counts) // size, append=-1))
        return rows, np.concatenate([[0], ends[last_of_batch]])


def _side(encoded: Encoded, rows: np.ndarray, device: torch.device) -> SideTensors:
    found = encoded.take(rows)
    return SideTensors(_tensor(found.ids, device), _tensor(found.floats, device))


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
