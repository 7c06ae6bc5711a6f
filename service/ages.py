"""How old an index is, whatever the clock of the host does, and what the policies make of it."""

import time
from collections.abc import Sequence
from datetime import datetime

from service.releases import LoadedRelease
from service.routing import NotServingError
from service.settings import Settings

HOUR_S = 3_600.0


def catalogue_moment(loaded: LoadedRelease) -> datetime:
    """What an index's catalogue is of: its watermark, or its making where the watermark is later.

    An index knows nothing of what came after it was made, whatever a row of its catalogue says: earlier versions took
    the watermark of rows that lay ahead, and such an index would be new for ever.
    """
    return min(loaded.watermark, datetime.fromisoformat(loaded.index.manifest.created_at))


def index_age_s(loaded: LoadedRelease) -> float:
    """Age of an index's catalogue in seconds, 0 where it is yet to come.

    Told by the clock, and by the clock when the release was opened plus what has passed since on one that nobody sets.
    The smaller one counts, of those that are possible: so a clock that is set wrongly while a release serves stops no
    request, and one that was wrong before counts no longer once it is right.
    """
    moment = catalogue_moment(loaded).timestamp()
    since_opened = loaded.opened_at - moment + (time.monotonic() - loaded.opened_on)
    return min((age for age in (time.time() - moment, since_opened) if age >= 0), default=0.0)


def is_old(loaded: LoadedRelease, settings: Settings) -> bool:
    """Whether an index is older than ``max_index_age_h``."""
    limit_h = settings.max_index_age_h
    return limit_h is not None and index_age_s(loaded) > limit_h * HOUR_S


def age_warnings(releases: Sequence[LoadedRelease], settings: Settings) -> list[str]:
    """A line for each old index, for answers.

    Raises:
        NotServingError: There is one and the policy refuses it.
    """
    if settings.max_index_age_h is None:
        return []
    lines = [
        f"the index of {loaded.scenario} is of {catalogue_moment(loaded).isoformat()}{_ahead(loaded)}, "
        f"older than {settings.max_index_age_h:g} hours (max_index_age_h)"
        for loaded in releases
        if is_old(loaded, settings)
    ]
    if lines and settings.old_index == "refuse":
        raise NotServingError(lines[0])
    return lines


def _ahead(loaded: LoadedRelease) -> str:
    if catalogue_moment(loaded) == loaded.watermark:
        return ""
    return f" (its making; its watermark, {loaded.watermark.isoformat()}, lies ahead of that)"
