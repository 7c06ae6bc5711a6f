"""Training batches whose requests are of one day, so that they share ad rows.

Ads change from day to day: an ad's row of Monday and that of Tuesday are two rows of the pin tower. A batch within a
day has fewer distinct ad rows for the same pairs, and the pin tower is most of a step. Shapes: R requests, N pairs.
"""

from collections.abc import Iterator

import numpy as np

from modeling.batches import Batch, gather_share, prefetch
from modeling.distributed import ALONE, Ranks
from modeling.examples import Examples

_MICROS_PER_DAY = 86_400_000_000


class DayBatches:
    """Whole requests of one UTC day a batch; requests, and the order of batches, are shuffled anew each epoch.

    The order depends on seed and epoch alone.

    Args:
        examples: What to draw from.
        pairs_per_batch: Pairs a batch, about: a day is cut into batches of nearly equal size between requests.
        seed: Of the order.
        ranks: Each process gets its share of every batch; the batches are the same for any number of processes.

    Raises:
        ValueError: ``pairs_per_batch`` is not positive.
    """

    def __init__(self, examples: Examples, *, pairs_per_batch: int, seed: int, ranks: Ranks = ALONE) -> None:
        if pairs_per_batch < 1:
            raise ValueError(f"pairs_per_batch must be 1 or more, got {pairs_per_batch}")
        self._examples, self._seed, self._ranks = examples, seed, ranks
        self._request_row = np.asarray(examples.request_row)
        self._days = np.asarray(examples.event_time) // _MICROS_PER_DAY  # [R]
        _, pairs_a_day = np.unique(self._days[self._request_row], return_counts=True)
        self._pairs_a_day = pairs_a_day
        self._batches_a_day = np.maximum(1, np.round(pairs_a_day / pairs_per_batch).astype(np.int64))

    def __len__(self) -> int:
        """Batches an epoch, at most."""
        return int(self._batches_a_day.sum())

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from the ``start``-th on."""
        pieces = self._pieces(np.random.default_rng((self._seed, epoch)))
        device = self._ranks.device
        return prefetch(gather_share(self._examples, rows, self._ranks, device=device) for rows in pieces[start:])

    def _pieces(self, generator: np.random.Generator) -> list[np.ndarray]:
        """Positions of the pairs of each batch."""
        rank = generator.permutation(len(self._days))  # of each request
        order = np.lexsort((rank[self._request_row], self._days[self._request_row]))
        cuts = self._cuts(self._request_row[order])
        pieces = [rows for rows in np.split(order, cuts) if len(rows)]
        return [pieces[at] for at in generator.permutation(len(pieces))]

    def _cuts(self, request_row: np.ndarray) -> np.ndarray:
        """Where batches begin, but for the first: starts of requests, each day divided evenly."""
        starts = np.append(np.flatnonzero(np.diff(request_row, prepend=-1)), len(request_row))
        first = np.cumsum(self._pairs_a_day) - self._pairs_a_day
        wanted = [
            begin + np.arange(count) * pairs // count
            for begin, pairs, count in zip(first, self._pairs_a_day, self._batches_a_day, strict=True)
        ]
        return np.unique(starts[np.searchsorted(starts, np.concatenate(wanted))])[1:]
