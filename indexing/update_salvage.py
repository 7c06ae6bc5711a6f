"""What a lost or damaged log of updates had stopped, as far as anything is left of it, for the one begun anew."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import UNSET

from indexing.ad_states import AdStates
from indexing.overlay_stops import HOSTS, STOPS, Stops
from indexing.update_manifest import is_segment
from indexing.update_record import Update
from indexing.update_scan import SegmentScan


def stops_left(log: Path | None, store: Path, *, now_us: int) -> list[Update]:
    """Takedowns and used-up budgets that stood, so that none is lifted unasked.

    Lines that restored an ad may be among those that are lost: such an ad is stopped, and told of.

    Args:
        log: Directory of what is left of a log, whatever its manifest says; None where nothing is.
        store: Directory of the store, where hosts keep what they know.
        now_us: When they are said again, microseconds UTC.
    """
    states = AdStates()
    for update in sorted(_lines(log), key=lambda one: one.seq) if log is not None else ():
        states.take_in(update)
    for directory in sorted(store.glob(f"{HOSTS}/*/{STOPS}")):
        for update in Stops(directory).held(None).updates():
            states.take_in(update)
    found = states.at(np.arange(len(states)))
    down = [states.ids[slot] for slot in np.flatnonzero(found.taken_down)]
    spent = [states.ids[slot] for slot in np.flatnonzero(found.spent)]
    return [
        *(Update(ad_id=ad_id, at=now_us, takedown=True) for ad_id in down),
        *(Update(ad_id=ad_id, at=now_us, budget=0.0) for ad_id in spent),
    ]


def _lines(directory: Path) -> Iterator[Update]:
    for path in directory.glob("*.jsonl"):
        if is_segment(path.name):
            for updates in SegmentScan(path):
                yield from (one for one in updates if one.takedown is not None or one.budget is not UNSET)
