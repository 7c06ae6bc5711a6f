"""Keeps what this host's processes know of the updates of the day: one overlay for each index that serves.

Each overlay has one writer among the processes of the host: whichever takes its lock first. The others map what it
writes, and take over when it is gone. An index is only handed out once the log, as it ended when it was opened, is in
effect in it: so no release that is published or rolled back to begins to serve without its takedowns. Where the log
cannot be read, it is handed out with what this host knows to be stopped.
"""

import hashlib
import logging
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from contracts.bundle import Bundle
from contracts.errors import AdsieveError, ArtifactError
from contracts.names import is_name
from contracts.release import UpdatePosition
from indexing.index import Index
from indexing.live import LiveIndex
from indexing.overlay_lock import OverlayTakenError, remove_overlay
from indexing.overlay_stops import HOSTS, STOPS, Stops
from indexing.overlay_writer import OverlayWriter
from indexing.store import DirectoryStore
from service.settings import Settings
from service.stopping import StoppingError

log = logging.getLogger(__name__)

FOLDER = "overlays"

_PAUSE_S = 0.02
_LIGHT = ".light"


@dataclass
class _Overlay:
    """One index, its bundles, and this process's writer where it is the one that writes."""

    index: Index
    two_tower: Bundle
    heavy: Bundle | None
    directory: Path
    lock: threading.Lock
    writer: OverlayWriter | None = None


class Overlays:
    """The overlays of the indexes that one process serves.

    Args:
        root: Directory of all overlays of this host; beside it is what the host knows to be stopped.
        store: The local store whose log is followed.
        wait_s: How long :meth:`open` waits for another process to bring the log into effect.
        allow_unknown: Hand out an index although the log is lost and nobody knows what it had stopped.
        stopping: Ends every wait.
    """

    def __init__(
        self,
        root: Path,
        store: DirectoryStore,
        *,
        wait_s: float,
        allow_unknown: bool = False,
        stopping: threading.Event | None = None,
    ) -> None:
        self._stopping = stopping or threading.Event()
        self._root, self._store, self._wait_s, self._allow_unknown = root, store, wait_s, allow_unknown
        self._overlays: dict[str, _Overlay] = {}
        self._log, self._stops, self._log_lock = store.update_log(), Stops(root.parent / STOPS), threading.Lock()

    def log_end(self) -> tuple[UpdatePosition | None, ArtifactError | None]:
        """Position of the last update of the log, None before the first; and what is wrong with the log."""
        with self._log_lock:
            try:
                end = self._log.end
                is_lost = end is None and (self._stops.are_known or self._is_named())
            except ArtifactError as error:
                return None, error
        if not is_lost:
            return end, None
        return None, ArtifactError(
            f"{self._log.directory}: the log of updates is gone; what this host knows to be stopped stays stopped; "
            "restore the directory from a backup, or begin another log with `adsieve index update --new-log`"
        )

    def _is_named(self) -> bool:
        """Whether any index here was built with a log."""
        return any(overlay.index.manifest.updates is not None for overlay in list(self._overlays.values()))

    def open(self, index: Index, two_tower: Bundle, heavy: Bundle | None) -> LiveIndex:
        """The index with the log in effect as it ends now; of a log that cannot be read, with its known takedowns.

        Where the overlay cannot be written and the log is empty, the index is as it was built.

        Raises:
            AdsieveError: The log is not in effect after ``wait_s``, or the overlay cannot be written.
            StoppingError: The process stops meanwhile.
            ArtifactError: The log is lost, and nobody knows what it had stopped.
        """
        overlay = self._overlay(index, two_tower, heavy)
        end, fault = self.log_end()
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                self._apply(overlay)
            except AdsieveError as error:
                end, fault = self.log_end()
                if end is None and fault is None and index.manifest.updates is None:
                    log.warning("updates will not come into effect: %s", error)
                    return LiveIndex(index, two_tower.schema)
                if fault is None or overlay.writer is None:
                    raise
            live = LiveIndex.open(index, two_tower.schema, overlay.directory)
            if live is not None and (fault is not None or _has_reached(live.position, end)):
                return live
            if time.monotonic() > deadline:
                break
            if live is not None and overlay.writer is not None:
                end, fault = self.log_end()  # another log took the place of the one that was asked
            if self._stopping.wait(_PAUSE_S):
                raise StoppingError(f"{overlay.directory}: its updates are not waited for, since the process stops")
        raise AdsieveError(
            f"{overlay.directory}: the updates up to {end.seq if end else 0} are not in effect after "
            f"{self._wait_s:g} s; another process of this host writes there"
        )

    def _overlay(self, index: Index, two_tower: Bundle, heavy: Bundle | None) -> _Overlay:
        name = overlay_name(index, with_heavy=heavy is not None)
        overlay = self._overlays.get(name)
        if overlay is None:
            overlay = _Overlay(index, two_tower, heavy, self._root / name, threading.Lock())
            self._overlays[name] = overlay
        return overlay

    def reopen(self, name: str) -> LiveIndex | None:
        """The overlay that took the place of one that is retired; None where it is not there yet."""
        overlay = self._overlays.get(name)
        return None if overlay is None else LiveIndex.open(overlay.index, overlay.two_tower.schema, overlay.directory)

    def apply(self) -> None:
        """Bring new updates into effect where this process writes, or where nobody does any more.

        Raises:
            AdsieveError: After all others were tried: one could not be written, or the log cannot be read.
        """
        failed: AdsieveError | None = None
        for overlay in list(self._overlays.values()):
            try:
                self._apply(overlay)
            except AdsieveError as error:
                failed = error
        if failed is not None:
            raise failed

    def keep(self, serving: set[str], indexes: set[str]) -> None:
        """Write these overlays alone, and keep those of these indexes and of all that a rollback can reach."""
        self.let_go(serving)
        reachable = {release.index for scenario in self._store.scenarios() for release in self._store.list(scenario)}
        self.clean(reachable | indexes)

    def let_go(self, serving: set[str]) -> None:
        """Let other processes write the overlays that serve nothing here any longer."""
        for name in [name for name in self._overlays if name not in serving]:
            overlay = self._overlays.pop(name)
            with overlay.lock:
                if overlay.writer is not None:
                    overlay.writer.close()
                    overlay.writer = None

    def clean(self, versions: set[str]) -> None:
        """Remove the overlays of other indexes than these, where nobody writes them."""
        with suppress(FileNotFoundError):
            for directory in self._root.iterdir():
                if directory.name.removesuffix(_LIGHT) not in versions and directory.name not in self._overlays:
                    remove_overlay(directory)

    def close(self) -> None:
        """Let other processes write."""
        for overlay in self._overlays.values():
            with overlay.lock:
                if overlay.writer is not None:
                    overlay.writer.close()
                    overlay.writer = None
        self._overlays = {}

    def _apply(self, overlay: _Overlay) -> None:
        with overlay.lock:
            if overlay.writer is None and not self._take_over(overlay):
                return
            while overlay.writer is not None and overlay.writer.apply_pending():
                pass

    def _take_over(self, overlay: _Overlay) -> bool:
        try:
            overlay.writer = OverlayWriter(
                overlay.index,
                overlay.two_tower,
                overlay.heavy,
                self._store.update_log(),
                overlay.directory,
                stops=Stops(self._root.parent / STOPS),
                allow_unknown=self._allow_unknown,
            )
        except OverlayTakenError:
            return False
        log.info("this process applies the updates of %s", overlay.index.manifest.version)
        return True


def overlays_of(store: DirectoryStore, settings: Settings, stopping: threading.Event) -> Overlays:
    """Those of one process, as the settings say; ``stopping`` ends every wait."""
    return Overlays(
        overlay_root(settings, store),
        store,
        wait_s=settings.update_wait_s,
        allow_unknown=settings.unknown_takedowns == "serve",
        stopping=stopping,
    )


def overlay_root(settings: Settings, store: DirectoryStore) -> Path:
    """Directory of all overlays of one store on this host; several hosts may share the directory of a store."""
    root = store.root.absolute()
    if settings.local is not None and settings.local.absolute() != root:
        return settings.local / hashlib.sha256(str(root).encode()).hexdigest()[:16] / FOLDER
    host = socket.gethostname()
    return store.root / HOSTS / (host if is_name(host) else "localhost") / FOLDER


def overlay_name(index: Index, *, with_heavy: bool) -> str:
    """One for a release with a heavy ranker, another for one without: new ads are encoded for it, or they are not."""
    return index.manifest.version + ("" if with_heavy or index.heavy_ads is None else _LIGHT)


def _has_reached(position: UpdatePosition | None, end: UpdatePosition | None) -> bool:
    if end is None:
        return True
    return position is not None and position.log == end.log and position.seq >= end.seq
