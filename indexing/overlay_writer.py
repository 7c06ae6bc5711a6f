"""Applies the log of updates to the overlay of one index on one host. One process of the host does so at a time.

States come first, so that no takedown waits for embeddings; then content, in batches. What readers see changes in this
order: a row's values, the number of rows, what it supersedes, that it is here, and last the number of the update up to
which all is in effect. So a writer may be killed anywhere: the next one goes on from that number, and what is applied
twice changes nothing. What cannot be trusted (another log, another start of the host, a file of another size, a log
that is shorter than what was applied) is built anew beside, and takes the place of the old in one rename.

Shapes: N ads, A ads of the index.
"""

import fcntl
import logging
import os
import secrets
import shutil
from collections import deque
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from contracts.artifact import write_bytes, write_json
from contracts.bundle import Bundle
from contracts.errors import AdsieveError
from contracts.release import UpdatePosition
from indexing.ad_states import AdStates
from indexing.embed import AdEmbedder
from indexing.index import Index
from indexing.live import LiveIndex
from indexing.overlay_content import ContentEmbedder, EmbeddedContent, NewAd
from indexing.overlay_effect import AdRows, Effect, effect
from indexing.overlay_files import CURRENT, OverlayArrays, create_overlay, map_overlay
from indexing.overlay_rows import NewRow, RowWriter
from indexing.update_log import UpdateLog
from indexing.update_record import Update

log = logging.getLogger(__name__)

MIN_CAPACITY, MAX_FIRST_CAPACITY = 1 << 16, 1 << 22
CONTENTS_AT_ONCE = 2048
_BATCH = 512
LOCK, CARRIED = ".lock", "carried.json"


class OverlayTakenError(AdsieveError):
    """Another process writes the overlay."""


class OverlayWriter:
    """The one writer of an overlay; ``close`` it to let another process take over.

    Args:
        index: Whose ads change.
        two_tower: The bundle that the index was built with; its pin tower embeds content.
        heavy: A bundle whose ad side is encoded as the index's heavy block; None where it has none.
        log: Followed. An object of its own.
        directory: Of the overlay, on this host; created.
        capacity: Rows of a first overlay; a full one is replaced by a larger one.

    Raises:
        OverlayTakenError: Another process writes this overlay.
        AdsieveError: The directory cannot be written.
        ArtifactError: The log cannot be read, or the pin tower does not compute what it should.
    """

    def __init__(
        self,
        index: Index,
        two_tower: Bundle,
        heavy: Bundle | None,
        log: UpdateLog,
        directory: Path,
        *,
        capacity: int | None = None,
    ) -> None:
        self._index, self._log, self._directory = index, log, Path(directory)
        self._capacity = capacity or int(np.clip(len(index), MIN_CAPACITY, MAX_FIRST_CAPACITY))
        heavy = heavy if index.heavy_ads is not None else None
        self._lock = _lock(self._directory)
        self._published: OverlayArrays | None
        try:
            embedder = AdEmbedder(two_tower, heavy, precision=index.manifest.precision, threads=1)
            self._embedder = ContentEmbedder(embedder)
            self._published = map_overlay(self._directory, index, writable=True)
            found = self._published
            if found is not None and not self._is_trusted(found):
                self._carry_over(found)
                found = None
            self._start(found)
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
        end = self._log.end
        if end is not None and self._must_begin_anew(end):
            self._carry_over(self._rows.arrays)
            self._start(None)
        num_read = 0 if end is None else self._read(end)
        num_applied = self._apply_contents(max_contents)
        if end is not None:
            done = self._queue[0].seq - 1 if self._queue else self._read_to
            self._rows.arrays.advance(end.log, max(done, self._done))
        if not self._queue:
            self._publish()
        return num_read + num_applied

    def close(self) -> None:
        """Let go of the overlay; it stays as it is."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _is_trusted(self, overlay: OverlayArrays) -> bool:
        """Whether the log continues what was applied. Where it has vanished, what is known of takedowns is kept."""
        end, position = self._log.end, overlay.position
        return end is None or position is None or (position.log == end.log and position.seq <= end.seq)

    def _must_begin_anew(self, end: UpdatePosition) -> bool:
        return self._log_id not in ("", end.log) or self._read_to > end.seq

    def _start(self, overlay: OverlayArrays | None) -> None:
        """Begin with an overlay that is here, or with one without updates. Nothing of the log was read."""
        self._states, self._ads = AdStates(), AdRows(self._index)
        self._carried = _read_carried(self._directory)
        for ad_id in sorted(self._carried):
            self._states.take_in(Update(ad_id=ad_id, at=0, takedown=True))
        self._queue = deque[NewAd]()
        self._read_to = self._done = 0
        position = None if overlay is None else overlay.position
        self._log_id = "" if position is None else position.log
        arrays = self._create(self._capacity) if overlay is None else overlay
        self._rows = RowWriter(arrays, self._index)
        if overlay is not None:
            self._done = 0 if position is None else position.seq
            self._learn_rows(arrays)
        elif self._carried:
            self._ads.extend(self._states.ids)
            slots = np.arange(len(self._ads))
            self._rows.set_states(slots, self._ads, self._effect(slots))

    def _carry_over(self, overlay: OverlayArrays) -> None:
        """Note what is taken down or without budget, since the log that told so is gone; only a restore lifts it."""
        rows, num_ads = np.flatnonzero(overlay.withdrawn), len(self._index)
        texts = overlay.texts(0, overlay.num_rows)
        own = rows[(rows >= num_ads) & (rows < num_ads + len(texts))] - num_ads
        stopped = {*self._index.id_table.ids(rows[rows < num_ads]), *(texts[row][0] for row in own.tolist())}
        log.error(
            "%s: the log of updates is another one now, or lacks its end, and the overlay is built anew: %d ads that "
            "were taken down or without budget stay stopped until `adsieve index update --restore` names them",
            *(self._directory, len(stopped)),
        )
        if stopped:
            write_json(self._directory / CARRIED, sorted(stopped | _read_carried(self._directory)))

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
        lifted = set[str]()
        for update in self._log.read(UpdatePosition(log=log_id, seq=read_to)):
            count += 1
            read_to = update.seq
            touched.add(self._states.take_in(update))
            if update.takedown is False and update.ad_id in self._carried:
                lifted.add(update.ad_id)
            content = update.content
            if content is not None and (update.seq > self._done or content.scenario != self._index.scenario):
                contents.append(NewAd(update.ad_id, update.seq, content))
        self._ads.extend(self._states.ids[len(self._ads) :])
        slots = np.fromiter(touched, np.int64, len(touched))
        self._rows.set_states(slots, self._ads, self._effect(slots))
        self._queue.extend(contents)
        self._read_to = max(read_to, end.seq)  # a compaction may have dropped the last ones
        if lifted:
            self._carried -= lifted
            write_json(self._directory / CARRIED, sorted(self._carried))
        return count

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

    def _apply_batch(self, batch: list[NewAd]) -> None:
        """Append a row for each content that is later than what its ad has, in the order of the log."""
        slots = [self._states.slots[ad.ad_id] for ad in batch]
        embedded = self._embed(batch, slots)
        latest: dict[int, int] = {}
        rows: list[NewRow] = []
        for place, (ad, slot) in enumerate(zip(batch, slots, strict=True)):
            is_here = ad.content.scenario == self._index.scenario
            if ad.content.valid_from <= latest.get(slot, self._ads.valid_from[slot]):
                continue
            if is_here and place not in embedded:
                continue
            if is_here or self._ads.is_found(slot) or slot in latest:
                rows.append(NewRow(slot, ad, embedded.get(place)))
            latest[slot] = ad.content.valid_from
        if rows:
            self._make_room(len(rows))
            self._rows.append(rows, self._ads, self._effect(np.array([row.slot for row in rows], np.int64)))
        for slot, valid_from in latest.items():
            self._ads.valid_from[slot] = valid_from

    def _embed(self, batch: list[NewAd], slots: list[int]) -> dict[int, tuple[EmbeddedContent, int]]:
        """By place in the batch, where its embedding is; what cannot count, or is not valid, is left out."""
        places = [
            place
            for place, (ad, slot) in enumerate(zip(batch, slots, strict=True))
            if ad.content.scenario == self._index.scenario and ad.content.valid_from > self._ads.valid_from[slot]
        ]
        before = dict(self._embedder.faults)
        parts = list(self._embedder.embed([batch[place] for place in places]))
        for fault, count in self._embedder.faults.items():
            if count > before.get(fault, 0):
                log.error("%s: %d ads are left out: %s", self._directory, count - before.get(fault, 0), fault)
        return {places[place]: (part, at) for part in parts for at, place in enumerate(part.places.tolist())}

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


def _read_carried(directory: Path) -> set[str]:
    """Ads that stay stopped although the log does not say so."""
    try:
        return set(msgspec.json.decode((directory / CARRIED).read_bytes(), type=list[str]))
    except FileNotFoundError:
        return set()
    except (OSError, ValueError) as error:
        log.error("%s: cannot be read, ads that it stopped may be shown again: %s", directory / CARRIED, error)
        return set()


def private_live_index(index: Index, two_tower: Bundle, heavy: Bundle | None, log: UpdateLog) -> LiveIndex:
    """An index with a log in effect as it is now, for one process and no longer than it lives.

    Its files are gone at once; what is mapped stays. The arguments and errors are those of :class:`OverlayWriter`.
    """
    if log.end is None:
        return LiveIndex(index, two_tower.schema)
    with TemporaryDirectory(prefix="adsieve-overlay-") as directory:
        writer = OverlayWriter(index, two_tower, heavy, log, Path(directory))
        try:
            while writer.apply_pending():
                pass
        finally:
            writer.close()
        live = LiveIndex.open(index, two_tower.schema, Path(directory))
    return live if live is not None else LiveIndex(index, two_tower.schema)


def remove_overlay(directory: Path) -> None:
    """Remove an overlay that no process writes; what readers have mapped stays readable."""
    try:
        handle = _lock(directory)
    except AdsieveError:
        return
    try:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(handle)


def _lock(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise AdsieveError(f"{directory}: the overlay cannot be written here: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_here = os.path.samestat(os.fstat(handle), os.stat(directory / LOCK))
    except OSError:
        is_here = False
    if not is_here:  # held by another, or removed by one a moment ago
        os.close(handle)
        raise OverlayTakenError(f"{directory}: another process writes this overlay")
    return handle
