"""What serves at this moment, and the end of what served before."""

import threading
from collections.abc import Callable

from service.memory import give_back
from service.releases import Snapshot
from service.retired import Retired


class Serving:
    """Holds the snapshot that requests take; what a change leaves out ends in the thread that calls :meth:`let_go`."""

    def __init__(self) -> None:
        self._swapping, self._retired = threading.Lock(), Retired()
        self.snapshot = Snapshot()

    def swap(self, change: Callable[[Snapshot], Snapshot]) -> None:
        """Serve what ``change`` makes of what serves; one thread at a time."""
        with self._swapping:
            after = change(self.snapshot)
            self._retired.retire(self.snapshot, after)
            self.snapshot = after

    def let_go(self) -> None:
        """Free what serves no longer and no request has, and return its memory to the system."""
        if self._retired.let_go():
            give_back()
