"""The light stage where an index's vectors lie on a GPU: rows, bids and one embedding go in, survivors come out.

Policies are decided here, on the processor: what is stopped, unknown or filtered is no row of a pool by then, so that
updates of state need nothing of the device. Updates of content append rows; those that it lacks are brought over before
the first request that names one. What the device has no room for is scored by the processor, from the same arrays.

**Not yet run on a GPU**; the same calls run in the tests on a CPU. Shapes: P ads of a pool, K survivors, H heads, D
width of a head's vector.
"""

import logging
import threading
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from contracts.errors import AdsieveError, ArtifactError
from contracts.utility import top_positions
from engines.device_memory import DeviceMemoryError
from engines.gpu import Gpu
from engines.names import has_nvidia_gpu
from engines.resident import Best, ResidentPins
from engines.select import median_ms
from indexing.live import LiveIndex
from service.light import Scored, ScoredPool, score_here, score_pool, scored_of
from service.pools import Pool
from service.releases import LoadedRelease
from towers.serving import score

log = logging.getLogger(__name__)

LightDeviceChoice = Literal["auto", "cpu", "cuda"]

TOLERANCE = 1e-5
"""Largest error of a logit, relative above 1: both sides sum exact products of fp32 in other orders."""
SPARE_SHARE, MIN_SPARE = 0.05, 4_096
"""Room for new and changed ads, of the ads of an index."""
SAMPLE_ROWS, TIMED_SURVIVORS, SECONDS = 1_000, 100, 0.1


class DeviceLight:
    """Scores pools on a device. May be used by several threads.

    Args:
        pins: The vectors of an index, with room for those of new and changed ads.
        num_ads: Of the index.
    """

    def __init__(self, pins: ResidentPins, num_ads: int) -> None:
        self._pins, self._num_ads = pins, num_ads
        self._own: WeakKeyDictionary[LiveIndex, np.ndarray] = WeakKeyDictionary()
        self._lock, self._is_full = threading.Lock(), False

    def score(self, release: LoadedRelease, pool: Pool, query: np.ndarray, survivors: int | None) -> Scored | None:
        """The pool with its survivors, or where ``survivors`` is None with all scores; None where the device cannot."""
        if len(pool.rows) == 0:
            return None
        if survivors is None or survivors > self._pins.most_survivors:
            logits = self.logits(release, pool, query)
            return None if logits is None else scored_of(release, pool, logits)
        places = self._places(release.live, pool.rows, query)
        if places is None:
            return None
        heads, absent = release.objectives.heads(pool.objectives), _absent(release, pool, query)
        best = self._pins.best(places, heads, pool.bids, query, k=survivors, absent=absent)
        return DeviceScored(release=release, pool=pool, device=self, query=query, found=best)

    def logits(self, release: LoadedRelease, pool: Pool, query: np.ndarray) -> np.ndarray | None:
        """All logits of a pool, float32 [P, H]; None where the device cannot."""
        places = self._places(release.live, pool.rows, query)
        return None if places is None else self._pins.logits(places, query, absent=_absent(release, pool, query))

    def _places(self, live: LiveIndex, rows: np.ndarray, query: np.ndarray) -> np.ndarray | None:
        """Where rows of the index and of its overlay lie on the device, -1 as it is; None where one is not there."""
        if len(rows) > self._pins.most_rows or not np.isfinite(query).all():
            return None
        mine = np.flatnonzero(rows >= self._num_ads)
        if len(mine) == 0:
            return rows
        places = rows.copy()
        own = rows[mine] - self._num_ads
        known = self._known(live, int(own.max()) + 1)
        if len(known) <= own.max():
            return None
        places[mine] = known[own]
        return places

    def _known(self, live: LiveIndex, count: int) -> np.ndarray:
        """Places of the overlay's first rows, of ``count`` where there is room; each overlay has rows of its own."""
        with self._lock:
            known = self._own.get(live, np.zeros(0, np.int64))
            missing = count - len(known)
            if missing > 0 and missing <= self._pins.room:
                rows = np.arange(len(known), count) + self._num_ads
                given = live.pins(rows)
                first = self._pins.append(given.vectors, given.bias, given.scales)
                self._own[live] = known = np.concatenate([known, first + np.arange(missing)])
            elif missing > 0 and not self._is_full:
                self._is_full = True
                log.warning("the device has no room for more new ads: requests that name one are scored on the CPU")
            return known


@dataclass(frozen=True, kw_only=True)
class DeviceScored:
    """A pool of which the device gave the survivors; the scores of the others are computed there when asked for."""

    release: LoadedRelease
    pool: Pool
    device: DeviceLight
    query: np.ndarray
    found: Best

    def best(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """As ``Scored`` says; None where fewer were asked of the device."""
        if k > len(self.found.positions) and len(self.found.positions) < len(self.pool.rows):
            return None
        return self.found.positions[:k], self.found.utilities[:k]

    def columns_at(self, places: np.ndarray) -> np.ndarray:
        """As ``Scored`` says; of survivors from what the device gave."""
        order = np.argsort(self.found.positions)
        at = np.searchsorted(self.found.positions, places, sorter=order)
        at = order[np.minimum(at, len(order) - 1)]
        if not np.array_equal(self.found.positions[at], places):
            return self._all.columns_at(places)
        few = Pool(
            positions=self.pool.positions[places],
            rows=self.pool.rows[places],
            bids=self.pool.bids[places],
            objectives=self.pool.objectives[places],
        )
        return scored_of(self.release, few, self.found.logits[at]).columns_at(np.arange(len(places)))

    @property
    def logits(self) -> np.ndarray:
        return self._all.logits

    @property
    def utilities(self) -> np.ndarray:
        return self._all.utilities

    @cached_property
    def _all(self) -> ScoredPool:
        logits = self.device.logits(self.release, self.pool, self.query)
        if logits is None:
            return score_here(self.release, self.pool, self.query)
        return scored_of(self.release, self.pool, logits)


def with_device(loaded: LoadedRelease, choice: LightDeviceChoice, gpu: Gpu) -> LoadedRelease:
    """The release with its light stage on a device, where the choice is that.

    Args:
        choice: ``auto`` takes the device where this machine has one, its logits keep ``TOLERANCE`` and it is faster for
            1,000 candidates; ``cuda`` wants it whatever it takes; ``cpu`` leaves the release as it is. Where there is
            no room in the budget the processor does the work, with a warning.
        gpu: The device and its budget.

    Raises:
        AdsieveError: ``cuda`` is wanted, and this machine has none.
        ArtifactError: ``cuda`` is wanted, and its logits are others.
    """
    if choice == "cpu" or (choice == "auto" and gpu.device != "cpu" and not has_nvidia_gpu()):
        return loaded
    try:
        moved = replace(loaded, device=open_device(loaded, gpu))
        check_device_light(moved)
    except DeviceMemoryError as error:
        log.warning("the light stage of %s runs on the CPU: %s", loaded.release.release_id, error)
        return loaded
    except AdsieveError as error:
        if choice == "cuda":
            raise
        log.warning("the light stage of %s runs on the CPU: %s", loaded.release.release_id, error)
        return loaded
    return moved if choice == "cuda" or _is_faster(moved) else loaded


def open_device(loaded: LoadedRelease, gpu: Gpu) -> DeviceLight:
    """Bring the vectors of a release's index to a device."""
    index = loaded.index
    spare = max(MIN_SPARE, int(SPARE_SHARE * len(index)))
    pins = ResidentPins(index.vectors, index.bias, index.scales, spare=spare, gpu=gpu)
    return DeviceLight(pins, len(index))


def check_device_light(loaded: LoadedRelease) -> None:
    """Compare the device's scores of some ads, and its survivors, with the processor's.

    Raises:
        ArtifactError: A logit is further away than ``TOLERANCE``, or other ads survive than ones of such scores.
    """
    pool, query = _sample(loaded)
    here, there = score_here(loaded, pool, query), score_pool(loaded, pool, query)
    error = _error(there.logits, here.logits)
    survivors = min(TIMED_SURVIVORS, len(pool.rows))
    found = score_pool(loaded, pool, query, survivors=survivors).best(survivors)
    wanted = here.utilities[top_positions(here.utilities, survivors)]
    if found is not None:
        error = max(error, _error(here.utilities[found[0]], wanted), _error(found[1], wanted))
    if not error <= TOLERANCE:  # NaN fails
        raise ArtifactError(f"the light stage on the device is {error:.3g} from the CPU's, allowed {TOLERANCE:.3g}")


def _is_faster(loaded: LoadedRelease) -> bool:
    """Whether the device beats the processor for a usual request; logs both times."""
    pool, query = _sample(loaded)
    there = median_ms(lambda: score_pool(loaded, pool, query, survivors=TIMED_SURVIVORS), seconds=SECONDS)
    here = median_ms(lambda: top_positions(score_here(loaded, pool, query).utilities, TIMED_SURVIVORS), seconds=SECONDS)
    log.info("light stage of %d ads: %.3f ms on the device, %.3f ms on the CPU", len(pool.rows), there, here)
    return there < here


def _sample(loaded: LoadedRelease) -> tuple[Pool, np.ndarray]:
    """Ads spread over the index and one that is unknown, with bids of 1; the embedding of an empty request."""
    rows = np.unique(np.linspace(0, len(loaded.index) - 1, SAMPLE_ROWS - 1).astype(np.int32))
    rows = np.append(rows, np.int32(-1))
    count = len(rows)
    pool = Pool(
        positions=np.arange(count),
        rows=rows,
        bids=np.ones(count),
        objectives=np.arange(count) % len(loaded.objectives.names),
    )
    encoder = loaded.tower.query_encoder
    empty = encoder.encode({}, num_rows=1, event_time=np.zeros(1, np.int64), absent="missing").encoded
    return pool, loaded.tower.embed_query(empty)[0]


def _absent(release: LoadedRelease, pool: Pool, query: np.ndarray) -> np.ndarray | None:
    """Logits of an ad of which nothing is known [H], where the pool has such ads."""
    if not (pool.rows < 0).any():
        return None
    cold = release.cold.pins
    return score(query, cold.vectors, cold.bias, cold.scales)[0]


def _error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float((np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))).max(initial=0.0))
