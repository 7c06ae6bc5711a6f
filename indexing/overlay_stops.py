"""What stops ads on this host, kept for when the log that told so is lost or damaged: nothing revives an ad.

    stops/log/            takedowns and budgets of the log that is followed, under its numbers: a log of updates itself
    stops/carried.json    what earlier logs stopped, and lines that this one lost; until a later update says otherwise

Unlike an overlay this outlives a start of the machine and serves every index of the host. A writer of an overlay begins
with what is held here, reads the log over it, and hands back what it read.
"""

import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from contracts.artifact import file_lock, write_json
from contracts.errors import AdsieveError, ArtifactError
from contracts.release import UpdatePosition
from indexing.compaction import compact
from indexing.overlay_lock import ELSEWHERE
from indexing.update_log import UpdateLog
from indexing.update_record import Update

log = logging.getLogger(__name__)

HOSTS, STOPS = "hosts", "stops"
"""In the directory of a store, ``hosts/NAME/stops`` is that of a host which keeps nothing elsewhere."""

LOG, CARRIED = "log", "carried.json"
_MANY_SEGMENTS = 4
_NO_NUMBER = 1 << 62


class Held(msgspec.Struct, kw_only=True):
    """Ads that stay stopped, and the number from which on an update of the log that is followed counts instead.

    Args:
        log: That is followed; empty where there is none that can be read.
        takedowns, budgets: By ad.
        followed: How far earlier logs were followed, by their id: one that comes back is known up to there.
    """

    log: str = ""
    takedowns: dict[str, int] = {}
    budgets: dict[str, int] = {}
    followed: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.takedowns) + len(self.budgets)

    def updates(self) -> Iterator[Update]:
        """What is held, as updates."""
        yield from (Update(ad_id=ad_id, at=0, takedown=True) for ad_id in self.takedowns)
        yield from (Update(ad_id=ad_id, at=0, budget=0.0) for ad_id in self.budgets)

    def over(self, update: Update) -> Update:
        """An update of the log as it counts; from the number on that is held, it takes the place of what is held."""
        if update.takedown is not None and update.ad_id in self.takedowns:
            if update.seq >= self.takedowns[update.ad_id]:
                del self.takedowns[update.ad_id]
            else:
                update = replace(update, takedown=True)
        if update.budget is not UNSET and update.ad_id in self.budgets:
            if update.seq >= self.budgets[update.ad_id]:
                del self.budgets[update.ad_id]
            else:
                update = replace(update, budget=0.0)
        return update


class Stops:
    """The stops of one host and store; several processes may use the directory. Made for one thread.

    Args:
        directory: Of the host; created when there is something to keep.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)
        self._log = UpdateLog(self._directory / LOG)
        self._unsaved: list[Update] = []
        self._kept: Held | None = None

    @property
    def are_known(self) -> bool:
        """Whether this host has followed a log before."""
        try:
            return (self._directory / CARRIED).exists() or self._log.end is not None
        except ArtifactError:
            return False

    def held(self, end: UpdatePosition | None, floor: int = 0) -> Held:
        """What stays stopped when a log is read from its beginning.

        Args:
            end: Of the log; None where it is gone or cannot be read.
            floor: How far it was compacted: what it dropped below, this host may not have seen.

        Raises:
            AdsieveError: The disk is full.
        """
        if not self._directory.is_dir():
            return Held(log=end.log if end is not None else "")
        with self._locked():
            mine, carried = self._end(), self._carried()
            if end is None:
                return _joined(carried, self._stopped(_NO_NUMBER), log_id="", first=_NO_NUMBER)
            first = carried.followed.get(end.log, 0) + 1
            if carried.log not in ("", end.log):
                carried = _joined(carried, Held(), log_id=end.log, first=first)
            carried.log = end.log
            if mine is None:
                return carried
            if mine.log != end.log:
                held = _joined(carried, self._stopped(first), log_id=end.log, first=first)
            elif mine.seq < floor:
                held = carried
            else:
                held = _over(carried, self._stopped(end.seq + 1), end.log)
            if mine.log != end.log or not floor <= mine.seq <= end.seq:
                held.followed[mine.log] = max(mine.seq, held.followed.get(mine.log, 0))
                self._write(held)
                shutil.rmtree(self._log.directory)
                self._log = UpdateLog(self._log.directory)
            else:
                self._compact()
            return held

    def save(self, log_id: str, updates: Iterable[Update]) -> None:
        """Keep what was read of the log: of its takedowns and budgets, those that are not here yet.

        Raises:
            AdsieveError: The disk is full; they are tried again at the next call.
        """
        self._unsaved += [
            Update(seq=one.seq, ad_id=one.ad_id, at=one.at, takedown=one.takedown, budget=one.budget)
            for one in updates
            if one.takedown is not None or one.budget is not UNSET
        ]
        if not self._unsaved:
            return
        with self._locked():
            mine = self._end()
            if mine is None or mine.log == log_id:  # else another process follows a newer log, and so will this one
                self._log.append_mirrored(self._unsaved, log=log_id)
            self._unsaved = []

    def keep(self, held: Held) -> None:
        """Keep what is still held when the log has been read to its end: that log does not tell of it."""
        if held == self._kept or (self._kept is None and not held and not (self._directory / CARRIED).exists()):
            return
        if held:
            log.error(
                "%s: the log of updates does not tell any more of %d takedowns and budgets; they stay until `adsieve "
                "index update` says otherwise, by --restore or --budget",
                *(self._directory, len(held)),
            )
        with self._locked():
            self._write(held)

    def _write(self, held: Held) -> None:
        write_json(self._directory / CARRIED, held)
        self._kept = Held(
            log=held.log, takedowns=dict(held.takedowns), budgets=dict(held.budgets), followed=dict(held.followed)
        )

    def _stopped(self, at_most: int) -> Held:
        """What the log that was followed last had stopped, with the number of what did so, or ``at_most``."""
        held = Held()
        try:
            for update in self._log.read():
                if update.takedown is not None:
                    _note(held.takedowns, update.ad_id, update.takedown, min(update.seq, at_most))
                if update.budget is not UNSET:
                    _note(
                        held.budgets,
                        update.ad_id,
                        update.budget is not None and update.budget <= 0,
                        min(update.seq, at_most),
                    )
        except ArtifactError as error:
            log.error("%s; what comes after is not known to be stopped", error)
        return held

    def _end(self) -> UpdatePosition | None:
        try:
            self._log.repair()
            return self._log.end
        except ArtifactError as error:
            aside = self._log.set_aside()
            log.error("%s: what this host knew to be stopped is lost, what is left of it is in %s", error, aside)
            return None

    def _carried(self) -> Held:
        path = self._directory / CARRIED
        try:
            return msgspec.json.decode(path.read_bytes(), type=Held)
        except FileNotFoundError:
            return Held()
        except (OSError, ValueError) as error:
            log.error("%s: cannot be read, ads that it stopped may be shown again: %s", path, error)
            return Held()

    def _compact(self) -> None:
        manifest = self._log.manifest()
        if manifest is not None and len(manifest.segments) > _MANY_SEGMENTS:
            try:
                compact(self._log, [self._log.end])
            except AdsieveError as error:
                log.error("%s", error)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._directory / ".lock"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock.touch()
        except OSError as error:
            raise AdsieveError(f"{self._directory}: cannot be written: {error.strerror}; {ELSEWHERE}") from error
        with file_lock(lock):
            yield


def _note(held: dict[str, int], ad_id: str, stops: bool, first: int) -> None:
    if stops:
        held[ad_id] = first
    else:
        held.pop(ad_id, None)


def _over(carried: Held, stopped: Held, log_id: str) -> Held:
    """Both, of one log; what it stopped last counts."""
    return Held(
        log=log_id,
        takedowns=carried.takedowns | stopped.takedowns,
        budgets=carried.budgets | stopped.budgets,
        followed=dict(carried.followed),
    )


def _joined(carried: Held, stopped: Held, *, log_id: str, first: int) -> Held:
    """Both, of a log whose updates count from the number ``first`` on."""
    return Held(
        log=log_id,
        takedowns=dict.fromkeys([*carried.takedowns, *stopped.takedowns], first),
        budgets=dict.fromkeys([*carried.budgets, *stopped.budgets], first),
        followed=dict(carried.followed),
    )
