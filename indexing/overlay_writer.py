"""Applies the log of updates to the overlay of one index on one host. One process of the host does so at a time.

States come first, so that no takedown waits for embeddings; then content, in batches. What readers see changes in this
order: a row's values, the number of rows, what it supersedes, that it is here, and last the number of the update up to
which all is in effect. So a writer may be killed anywhere: the next one goes on from that number, and what is applied
twice changes nothing. What cannot be trusted (another log, another start of the host, a file of another size, a log
that is shorter than what was applied) is built anew beside, and takes the place of the old in one rename.

Shapes: N ads, A ads of the index.
"""

import logging
import os
import secrets
import shutil
from collections import deque
from itertools import islice
from pathlib import Path

import numpy as np
from msgspec import UNSET

from contracts.artifact import write_bytes
from contracts.bundle import Bundle
from contracts.errors import AdsieveError, ArtifactError
from contracts.release import UpdatePosition
from indexing.ad_states import AdStates
from indexing.embed import AdEmbedder
from indexing.index import Index
from indexing.overlay_batches import new_rows
from indexing.overlay_content import ContentEmbedder, NewAd
from indexing.overlay_effect import AdRows, Effect, effect
from indexing.overlay_files import CURRENT, OverlayArrays, create_overlay, map_overlay
from indexing.overlay_lock import lock_overlay
from indexing.overlay_rows import RowWriter
from indexing.overlay_start import applied, continues, end_or_lost
from indexing.overlay_stops import Held, Stops
from indexing.update_log import UpdateLog
from indexing.update_record import Update

log = logging.getLogger(__name__)

MIN_CAPACITY, MAX_FIRST_CAPACITY = 1 << 16, 1 << 22
CONTENTS_AT_ONCE = 2048
_BATCH = 512


class OverlayWriter:
    """The one writer of an overlay; ``close`` it to let another process take over.

    Where the log cannot be read, the overlay that is here goes on, or one begins with what ``stops`` knows.

    Args:
        index: Whose ads change.
        two_tower: The bundle that the index was built with; its pin tower embeds content.
        heavy: A bundle whose ad side is encoded as the index's heavy block; None where it has none.
        log: Followed. An object of its own.
        directory: Of the overlay, on this host; created.
        stops: What this host knows to be stopped, whatever becomes of the log. An object of its own.
        allow_unknown: Begin although nobody knows what a lost log had stopped.
        capacity: Rows of a first overlay; a full one is replaced by a larger one.

    Raises:
        OverlayTakenError: Another process writes this overlay.
        TakedownsUnknownError: The log is lost, and neither an overlay nor ``stops`` knows of it.
        AdsieveError: The directory cannot be written.
        ArtifactError: The pin tower does not compute what it should.
    """

    def __init__(
        self,
        index: Index,
        two_tower: Bundle,
        heavy: Bundle | None,
        log: UpdateLog,
        directory: Path,
        *,
        stops: Stops | None = None,
        allow_unknown: bool = False,
        capacity: int | None = None,
    ) -> None:
        self._index, self._log, self._directory, self._stops = index, log, Path(directory), stops
        self._capacity = capacity or int(np.clip(len(index), MIN_CAPACITY, MAX_FIRST_CAPACITY))
        heavy = heavy if index.heavy_ads is not None else None
        self._lock = lock_overlay(self._directory)
        self._published: OverlayArrays | None
        self._held: Held
        try:
            self._published = found = map_overlay(self._directory, index, writable=True)
            knows = allow_unknown or applied(found) or (stops is not None and stops.are_known)
            end = end_or_lost(log, index.manifest, knows_stops=knows)
            embedder = AdEmbedder(two_tower, heavy, precision=index.manifest.precision, threads=1)
            self._embedder = ContentEmbedder(embedder)
            self._start(found if found is not None and continues(found, end) else None, end)
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> UpdatePosition | None:
        """The last update in effect; None before the first."""
        return self._rows.arrays.position

    @property
    def faults(self) -> dict[str, int]:
        """Content that was left out since this writer began, by fault."""
        return dict(self._embedder.faults)

    @property
    def num_waiting(self) -> int:
        """Content that was read and is not in effect yet."""
        return len(self._queue)

    def apply_pending(self, *, max_contents: int = CONTENTS_AT_ONCE) -> int:
        """Bring what the log holds into effect, content up to a number, so that new states need not wait for it.

        Call it until it returns 0 to catch up.

        Returns:
            How many updates were read or, of those read before, brought into effect.

        Raises:
            AdsieveError: The disk is full; states are in effect, content is tried again at the next call.
            ArtifactError: The log cannot be read.
        """
        try:
            end = self._log.end
        except ArtifactError:
            if self._published is None:
                self._publish()
            raise
        if end is not None:
            self._follow(end)
        num_read = 0 if end is None else self._read(end)
        num_applied = self._apply_contents(max_contents)
        if end is not None:
            done = self._queue[0].seq - 1 if self._queue else self._read_to
            self._rows.arrays.advance(end.log, max(done, self._done))
        if not self._queue:
            self._publish()
        if num_read + num_applied:
            self._count_stopped()
        self._keep_stops()
        return num_read + num_applied

    def close(self) -> None:
        """Let go of the overlay; it stays as it is."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _follow(self, end: UpdatePosition) -> None:
        """Begin anew where the log is not the one that was read, or lacks what was read of it."""
        is_other = self._log_id not in ("", end.log) or self._read_to > end.seq
        if is_other or (self._held and self._held.log != end.log):
            log.error("%s: the log of updates is another one now, or lacks its end: built anew", self._directory)
            self._start(None, end)
        elif self._held.log != end.log:
            self._held = self._known_stops(end)

    def _known_stops(self, end: UpdatePosition | None) -> Held:
        if self._stops is None:
            return Held(log=end.log if end is not None else "")
        manifest = self._log.manifest() if end is not None else None
        return self._stops.held(end, manifest.floor if manifest is not None else 0)

    def _start(self, overlay: OverlayArrays | None, end: UpdatePosition | None) -> None:
        """Begin with an overlay that is here, or with one without updates. Nothing of the log was read."""
        self._states, self._ads = AdStates(), AdRows(self._index)
        self._held, self._told = self._known_stops(end), list[Update]()
        for update in self._held.updates():
            self._states.take_in(update)
        stopped = np.arange(len(self._states))
        self._queue = deque[NewAd]()
        self._read_to = self._done = 0
        self._damaged_before = self._log.damaged
        position = None if overlay is None else overlay.position
        self._log_id = "" if position is None else position.log
        arrays = self._create(self._capacity) if overlay is None else overlay
        self._rows = RowWriter(arrays, self._index)
        if overlay is not None:
            self._done = 0 if position is None else position.seq
            self._learn_rows(arrays)
        self._ads.extend(self._states.ids[len(self._ads) :])
        self._rows.set_states(stopped, self._ads, self._effect(stopped))
        self._count_stopped()

    def _keep_stops(self) -> None:
        """Keep on this host what was read, and what the log does not tell of any more."""
        if self._stops is not None and self._held.log:
            told, self._told = self._told, []
            self._stops.save(self._held.log, told)
            self._stops.keep(self._held)

    def _learn_rows(self, arrays: OverlayArrays) -> None:
        """Take over the rows of a writer that is gone, and complete what it may have left half-done."""
        rows = np.arange(arrays.num_rows)
        ids = [ad_id for ad_id, _ in arrays.texts(0, len(rows))]
        slots = np.array([self._states.slot(ad_id) for ad_id in ids], np.int64)
        self._ads.extend(self._states.ids)
        self._ads.own[slots] = rows  # in order, so that the last one stands
        self._ads.valid_from[slots] = arrays.rows["valid_from"][rows]
        self._ads.gone[slots] = arrays.rows["is_gone"][rows]
        self._rows.complete(slots, self._ads)

    def _create(self, capacity: int) -> OverlayArrays:
        """An overlay without updates that no reader finds yet."""
        aside = self._directory / f"g-{secrets.token_hex(6)}"
        try:
            aside.mkdir()
            return create_overlay(aside, self._index, capacity=capacity)
        except OSError as error:
            raise AdsieveError(f"{aside}: the overlay cannot be written: {error.strerror}") from error

    def _publish(self) -> None:
        """Let readers find this overlay, and tell those of the one before."""
        arrays = self._rows.arrays
        if self._published is arrays:
            return
        write_bytes(self._directory / CURRENT, arrays.directory.name.encode())
        if self._published is not None:
            self._published.header["retired"][0] = 1
        self._published = arrays
        for path in self._directory.glob("g-*"):
            if path != arrays.directory:
                shutil.rmtree(path, ignore_errors=True)

    def _read(self, end: UpdatePosition) -> int:
        """Read what is new in the log: its states at once into effect, its content into the queue.

        All of it, since a state that a later update lifts must not be seen again when a log is read once more.
        """
        log_id = self._log_id = end.log
        touched, contents, read_to, count = set[int](), list[NewAd](), self._read_to, 0
        for updates in self._log.read_lots(UpdatePosition(log=log_id, seq=read_to)):
            count += len(updates)
            read_to = updates[-1].seq
            counted = [self._held.over(update) for update in updates] if self._held else updates
            touched.update(self._states.take_in_all(counted))
            self._told += [one for one in updates if one.takedown is not None or one.budget is not UNSET]
            for update in updates:
                content = update.content
                if content is not None and (update.seq > self._done or content.scenario != self._index.scenario):
                    contents.append(NewAd(update.ad_id, update.seq, content))
        self._ads.extend(self._states.ids[len(self._ads) :])
        slots = np.fromiter(touched, np.int64, len(touched))
        self._rows.set_states(slots, self._ads, self._effect(slots))
        self._queue.extend(contents)
        self._read_to = max(read_to, end.seq)  # a compaction may have dropped the last ones
        self._rows.arrays.header["damaged"][0] = self._log.damaged - self._damaged_before
        return count

    def _count_stopped(self) -> None:
        self._rows.count_stopped(self._states.at(np.arange(len(self._states))), self._ads)

    def _effect(self, slots: np.ndarray) -> Effect:
        merged = self._index.manifest.updates
        seq = merged.seq if merged is not None and merged.log == self._log_id else 0
        return effect(self._states.at(slots), self._ads.base[slots], self._index, seq)

    def _apply_contents(self, limit: int) -> int:
        applied = 0
        while self._queue and applied < limit:
            batch = list(islice(self._queue, min(_BATCH, limit - applied)))
            self._apply_batch(batch)
            for _ in batch:
                self._queue.popleft()
            applied += len(batch)
        return applied

    def _apply_batch(self, contents: list[NewAd]) -> None:
        """Append a row for each content that is later than what its ad has."""
        slots = [self._states.slots[ad.ad_id] for ad in contents]
        before = self._embedder.faults.copy()
        batch = new_rows(contents, slots, self._ads, self._index.scenario, self._embedder)
        if batch.rows:
            self._make_room(len(batch.rows))
            self._rows.append(batch.rows, self._ads, self._effect(np.array([row.slot for row in batch.rows], np.int64)))
        for slot, valid_from in batch.latest.items():
            self._ads.valid_from[slot] = valid_from
        self._tell_faults(before)

    def _tell_faults(self, before: dict[str, int]) -> None:
        for fault, count in self._embedder.faults.items():
            if count > before.get(fault, 0):
                log.error("%s: %d ads are left out: %s", self._directory, count - before.get(fault, 0), fault)
                self._rows.arrays.header["dropped"][0] += count - before.get(fault, 0)

    def _make_room(self, num_rows: int) -> None:
        """Replace a full overlay by a larger one, of the newest rows only, at once."""
        full = self._rows.arrays
        if full.num_rows + num_rows <= full.capacity:
            return
        newest = np.sort(self._ads.own[: len(self._ads)][self._ads.own[: len(self._ads)] >= 0])
        larger = self._create(max(self._capacity, 2 * (len(newest) + num_rows)))
        log.warning("%s: %d rows are full, %d go on", self._directory, full.capacity, len(newest))
        self._rows = self._rows.moved_to(larger, newest, self._ads)
        if self._published is full:
            self._publish()
