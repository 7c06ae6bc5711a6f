"""What stands against following the store's news, although what serves goes on serving."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from indexing.stores import shown_store
from service.settings import Settings
from service.telemetry import Telemetry

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A release that could not be loaded, or with no id whatever else failed.

    ``at`` is Unix time, ``tried`` seconds of a clock that never moves back.
    """

    release_id: str
    error: str
    at: float
    tried: float = field(default_factory=time.monotonic)


class Faults:
    """Faults that stand, by what was being done; safe in any thread, as long as each ``what`` is done in one.

    Args:
        settings: Name the store.
        telemetry: Counts them.
        is_mirror: Whether the store is the copy of another one, empty until the first ``refresh``.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry, *, is_mirror: bool) -> None:
        self._settings, self._telemetry = settings, telemetry
        self._knows_store = not is_mirror
        self._standing: dict[str, Failure] = {}

    @property
    def standing(self) -> dict[str, Failure]:
        return dict(self._standing)

    def attempt(self, what: str, work: Callable[[], None]) -> None:
        """Do something that may fail without harm to what serves; a failure stands until the next success."""
        try:
            work()
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            if what not in self._standing or self._standing[what].error != message:
                log.error("%s: %s", what, error)
            self._telemetry.faults.labels(what).inc()
            self._standing[what] = Failure(release_id="", error=message, at=time.time())
        else:
            self._standing.pop(what, None)
            self._knows_store |= what == "refresh"

    def note_empty(self, *, is_empty: bool) -> None:
        """Tell that nothing can serve; of a mirror only once it holds what there is."""
        if not is_empty:
            self._standing.pop("store", None)
        elif self._knows_store and "store" not in self._standing:
            what = f"{shown_store(self._settings.store)}: holds no release yet, waiting for `adsieve index publish`"
            log.warning("%s", what)
            self._standing["store"] = Failure(release_id="", error=what, at=time.time())
