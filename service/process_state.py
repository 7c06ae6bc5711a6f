"""What each process of a host serves, told to its siblings, so that whichever answers /metrics tells of all.

Without a directory a process knows of itself alone. With one, each process holds a lock there for as long as it lives
and writes its state beside it; a state whose lock nobody holds is of a process that died, and is forgotten.
"""

import fcntl
import os
import threading
from pathlib import Path

import msgspec

COUNTS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where processes share what they count; the name is that of prometheus_client, which reads it when imported."""

LOCK, _STATE = ".lock", ".state"


class ReleaseState(msgspec.Struct, frozen=True, kw_only=True):
    """A release that serves a scenario. Moments are Unix time; ``catalogue`` is what the index is of; ``engines``
    are by model, and so is ``batched``: whether requests share its calls."""

    scenario: str
    release: str
    two_tower: str
    index: str
    heavy: str
    loaded_at: float
    watermark: float
    catalogue: float
    engines: dict[str, str]
    update_position: int = 0
    updates_waiting: int = 0
    update_applied: float = 0.0
    log_damaged: int = 0
    overlay_rows: int = 0
    content_dropped: int = 0
    taken_down: int = 0
    without_budget: int = 0
    is_old: bool = False
    batched: dict[str, bool] = {}


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """One process.

    ``loading`` says that it takes requests and was never ready; ``log_readable`` is None before the log of updates was
    first read. ``heavies`` are the engines of the heavy rankers that it runs for other hosts, by version;
    ``device_held`` are bytes that it holds on a GPU, by what for.
    """

    ready: bool = False
    loading: bool = False
    heavy_waiting: int = 0
    log_readable: bool | None = None
    releases: dict[str, ReleaseState] = {}
    heavies: dict[str, str] = {}
    device_held: dict[str, int] = {}
    device_limit: int | None = None


class ProcessBoard:
    """Where processes read of one another. A process has one at most.

    Args:
        directory: Shared by the processes of one ``adsieve serve``; None for a process alone.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory, self._own = directory, str(os.getpid())
        self._lock = None if directory is None else _locked(directory / f"{self._own}{LOCK}")
        self._posted, self._posting = b"", threading.Lock()

    def post(self, state: ProcessState) -> None:
        """Tell the others."""
        text = msgspec.json.encode(state)
        if self._directory is None or text == self._posted:
            return
        unfinished = self._directory / f"{self._own}.new"
        with self._posting:
            unfinished.write_bytes(text)
            unfinished.replace(self._directory / f"{self._own}{_STATE}")
            self._posted = text

    def others(self) -> list[ProcessState]:
        """States of the other processes that live."""
        if self._directory is None:
            return []
        self._forget_the_dead(self._directory)
        states = []
        for path in sorted(self._directory.glob(f"*{_STATE}")):
            if path.stem != self._own:
                try:
                    states.append(msgspec.json.decode(path.read_bytes(), type=ProcessState))
                except FileNotFoundError:  # it was forgotten meanwhile
                    continue
        return states

    def _forget_the_dead(self, directory: Path) -> None:
        """Remove the states and the gauges of dead processes; what they counted stays counted."""
        from prometheus_client.multiprocess import mark_process_dead  # not in the supervisor, which counts nothing

        for path in directory.glob(f"*{LOCK}"):
            if path.stem.isdecimal() and path.stem != self._own and is_free(path):
                (directory / f"{path.stem}{_STATE}").unlink(missing_ok=True)
                mark_process_dead(path.stem, str(directory))
                path.unlink(missing_ok=True)


def shared_directory() -> Path | None:
    """Where the processes of this service share what they count; None where there is one process."""
    directory = os.environ.get(COUNTS_VARIABLE)
    return Path(directory) if directory else None


def _locked(path: Path) -> int:
    """A lock that ends with this process."""
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists() and path.stat().st_ino == os.fstat(lock).st_ino:
            return lock
        os.close(lock)  # another process took the file, not locked yet, for that of a dead one


def is_free(path: Path) -> bool:
    """Whether no process holds the lock, or the file is gone."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
