"""Tries, when a release is loaded, whether its models are to serve waiting requests together.

What was found of a model holds for the next one of its shape on the same engine: a trial beside requests tells little,
and a wrong one costs a service half of what it can do until the next release.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from service.gain import gain_by_turns
from service.heavies import LoadedHeavy, missing_row
from service.heavy import HeavyCall, run_calls
from service.query_towers import BatchedTowers, embed_together
from service.releases import LoadedRelease
from service.settings import Settings

log = logging.getLogger(__name__)

LEAST_GAIN = 1.2
"""So many times faster calls have to be together than one after another: the first of them waits for all the others,
and one that comes while they run for all of them, so that a smaller gain would not make up for it where requests wait.
"""
TOGETHER, ROUNDS = 4, 4


def with_trials(
    loaded: LoadedRelease, settings: Settings, towers: BatchedTowers | None, serving: Sequence[LoadedRelease] = ()
) -> LoadedRelease:
    """The release with what was found about its query tower and its heavy ranker.

    Args:
        serving: Of which it may be known already.
    """
    alike = [one for one in serving if (one.tower_shape, one.tower.engine) == (loaded.tower_shape, loaded.tower.engine)]
    if alike and towers is not None:
        batches = alike[0].batches_queries
    else:
        batches = towers is not None and towers.pays(loaded.tower)
    heavies = [one.heavy for one in serving if one.heavy is not None]
    heavy = None if loaded.heavy is None else with_trial(loaded.heavy, settings, heavies)
    log.info(
        "release %s: requests share calls of the query tower: %s, of the heavy ranker: %s",
        loaded.release.release_id,
        "yes" if batches else "no",
        "elsewhere" if heavy is None or heavy.batches is None else "yes" if heavy.batches else "no",
    )
    return replace(loaded, batches_queries=batches, heavy=heavy)


def with_trial(heavy: LoadedHeavy, settings: Settings, serving: Sequence[LoadedHeavy] = ()) -> LoadedHeavy:
    """The heavy ranker with whether requests share its calls; as it is where that is known, or another host runs it.

    Args:
        serving: Of which it may be known already.
    """
    if heavy.batches is not None or heavy.serving is None:
        return heavy
    if settings.heavy_batch < 2 or settings.heavy_batching != "auto":
        return replace(heavy, batches=settings.heavy_batching != "off" and settings.heavy_batch > 1)
    for other in serving:
        if other.batches is not None and (other.shape, other.engine) == (heavy.shape, heavy.engine):
            return replace(heavy, batches=other.batches)
    size = min(TOGETHER, settings.heavy_batch)
    return replace(heavy, batches=heavy_gain(heavy, settings.survivors, size) >= LEAST_GAIN)


def heavy_gain(heavy: LoadedHeavy, survivors: int, size: int) -> float:
    """How many times faster ``size`` requests are in one call than in as many; nothing is known of ads and users.

    The fastest of both: other processes of this service may load the same release meanwhile, and all of them are to
    find the same.
    """
    call = _call(heavy, survivors)
    return gain_by_turns(
        lambda: [run_calls([call]) for _ in range(size)], lambda: run_calls([call] * size), rounds=ROUNDS, of=min
    )


def warm_batches(loaded: LoadedRelease, settings: Settings) -> None:
    """Run the calls that waiting requests share once in sizes that double, so that engines meet no new one later."""
    if loaded.batches_queries:
        row = missing_row(loaded.tower.query_encoder)
        for size in _sizes(settings.query_batch):
            embed_together([(loaded.tower, row)] * size)
    heavy = loaded.heavy
    if heavy is not None and heavy.serving is not None and heavy.batches:
        call = _call(heavy, settings.survivors)
        for size in _sizes(min(settings.heavy_batch, settings.heavy_batch_rows // settings.survivors)):
            run_calls([call] * size)


def _sizes(most: int) -> list[int]:
    """Sizes of batches from 2 on.

    Example:
        >>> _sizes(12), _sizes(1)
        ([2, 4, 8, 12], [])
    """
    return sorted({min(2**power, most) for power in range(1, most.bit_length() + 1)} - {0, 1})


def _call(heavy: LoadedHeavy, survivors: int) -> HeavyCall:
    """A call for one user with so many ads, of all of whom nothing is known."""
    everyone = np.zeros(survivors, np.intp)
    return HeavyCall(
        heavy=heavy,
        query=missing_row(heavy.encoders.query_encoder),
        ads=missing_row(heavy.encoders.ad_encoder).take(everyone),
        pair=None if heavy.no_pair is None else heavy.no_pair.take(everyone),
        members=np.arange(survivors),
    )
