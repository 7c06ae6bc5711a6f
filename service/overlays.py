"""Keeps what this host's processes know of the updates of the day: one overlay for each index that serves.

Each overlay has one writer among the processes of the host: whichever takes its lock first. The others map what it
writes, and take over when it is gone. An index is only handed out once the log, as it ended when it was opened, is in
effect in it: so no release that is published or rolled back to begins to serve without its takedowns.
"""

import hashlib
import logging
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from contracts.artifact import is_name
from contracts.bundle import Bundle
from contracts.errors import AdsieveError
from contracts.release import UpdatePosition
from indexing.index import Index
from indexing.live import LiveIndex
from indexing.overlay_lock import OverlayTakenError, remove_overlay
from indexing.overlay_writer import OverlayWriter
from indexing.store import DirectoryStore
from service.settings import Settings

log = logging.getLogger(__name__)

FOLDER = "overlays"
HOSTS = "hosts"

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
        root: Directory of all overlays of this host.
        store: The local store whose log is followed.
        wait_s: How long :meth:`open` waits for another process to bring the log into effect.
    """

    def __init__(self, root: Path, store: DirectoryStore, *, wait_s: float) -> None:
        self._root, self._store, self._wait_s = root, store, wait_s
        self._overlays: dict[str, _Overlay] = {}
        self._log, self._log_lock = store.update_log(), threading.Lock()

    @property
    def end(self) -> UpdatePosition | None:
        """Position of the last update of the log; None before the first."""
        with self._log_lock:
            return self._log.end

    def open(self, index: Index, two_tower: Bundle, heavy: Bundle | None) -> LiveIndex:
        """The index with the log in effect as it ends now.

        Where the overlay cannot be written and the log is empty, the index is as it was built.

        Raises:
            AdsieveError: The log is not in effect after ``wait_s``, or the overlay cannot be written.
            ArtifactError: The log cannot be read.
        """
        name = overlay_name(index, with_heavy=heavy is not None)
        overlay = self._overlays.get(name)
        if overlay is None:
            overlay = _Overlay(index, two_tower, heavy, self._root / name, threading.Lock())
            self._overlays[name] = overlay
        end = self.end
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                self._apply(overlay)
            except AdsieveError as error:
                if end is None:
                    log.warning("updates will not come into effect: %s", error)
                    return LiveIndex(index, two_tower.schema)
                raise
            live = LiveIndex.open(index, two_tower.schema, overlay.directory)
            if live is not None and _has_reached(live.position, end):
                return live
            if time.monotonic() > deadline:
                break
            if live is not None and overlay.writer is not None:
                end = self.end  # another log took the place of the one that was asked
            time.sleep(_PAUSE_S)
        raise AdsieveError(
            f"{overlay.directory}: the updates up to {end.seq if end else 0} are not in effect after "
            f"{self._wait_s:g} s; another process of this host writes there"
        )

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

    def faults(self, name: str) -> dict[str, int]:
        """Content that was left out by this process, by fault."""
        overlay = self._overlays.get(name)
        return overlay.writer.faults if overlay is not None and overlay.writer is not None else {}

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
                overlay.index, overlay.two_tower, overlay.heavy, self._store.update_log(), overlay.directory
            )
        except OverlayTakenError:
            return False
        log.info("this process applies the updates of %s", overlay.index.manifest.version)
        return True


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
