"""Makes a log of updates smaller without changing what it does to any index that is kept.

Of each ad only the latest status, bid, takedown and budget matter, so fields that a later update sets are taken out of
earlier ones. Content that every kept index has merged goes once a catalogue has the ad too: until then the log alone
brings it into the next build, so it stays, with the ad's status and bid. So goes, after some days, a status or bid that
every kept index has merged, and what only says that nothing is wrong: a lifted takedown, a budget that is left. A
takedown that stands is never dropped. Numbers stay, so that a position in the log means the same before and after.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import islice

from msgspec import UNSET
from msgspec.structs import replace

from contracts.errors import ArtifactError
from contracts.release import UpdatePosition
from indexing.update_log import SEGMENT_BYTES, UpdateLog
from indexing.update_manifest import LogManifest, Segment
from indexing.update_record import Update
from indexing.update_segment import encode_batch

KEEP_DAYS = 30
_DAY_US = 86_400_000_000
_LINES_AT_ONCE = 10_000


Held = Callable[[Sequence[Update]], Sequence[bool]]
"""Tells of updates with content that all kept indexes have merged, which a catalogue has."""


@dataclass(frozen=True)
class Compaction:
    """What a compaction did, or would do.

    Args:
        before: Updates in the log.
        after: Those that are left, whole or in part.
        floor: Up to where content may have been dropped.
        replaced: Of those that went, how many say nothing that later ones do not say; the others are merged in every
            kept index.
        waiting: Ads whose content every kept index has merged and no catalogue has.
    """

    before: int = 0
    after: int = 0
    floor: int = 0
    replaced: int = 0
    waiting: list[str] = field(default_factory=list)


def compact(
    log: UpdateLog,
    kept: Iterable[UpdatePosition | None],
    *,
    held: Held | None = None,
    keep_days: float = KEEP_DAYS,
    now_us: int | None = None,
    dry_run: bool = False,
) -> Compaction:
    """Compact a log in place, in one step; appending waits meanwhile, readers need not.

    Args:
        log: Of a store. Where there is none, nothing is done.
        kept: How far each index that is kept has merged the log; an index that has not, and no index at all, keep all
            content.
        held: Where not given, all content that is merged goes.
        keep_days: Age from which merged and neutral states may go.
        now_us: Microseconds since 1970 UTC; the clock's by default.
        dry_run: Change nothing.

    Raises:
        AdsieveError: The disk is full; the log is as it was.
        ArtifactError: The log cannot be read, or has damaged lines.
    """
    if log.manifest() is None:
        return Compaction()
    with nullcontext() if dry_run else log.locked():
        manifest = log.manifest()
        if manifest is None:
            return Compaction()
        end = log.end
        last = end.seq if end is not None else 0
        floor = max(manifest.floor, _merged_by_all(manifest, kept))
        now = time.time_ns() // 1000 if now_us is None else now_us
        rule = _Rule(_latest(_sound(log)), floor, now - int(keep_days * _DAY_US), _needed(log, floor, held))
        if dry_run:
            for _ in _left(log, rule, last):
                pass
        else:
            _rewrite(log, manifest, rule, last)
        counts = rule.counts
        return Compaction(counts["before"], counts["after"], floor, counts["replaced"], rule.waiting)


@dataclass(frozen=True)
class _Latest:
    """Number of the latest update that sets each field, by ad."""

    status: dict[str, int]
    bid: dict[str, int]
    takedown: dict[str, int]
    budget: dict[str, int]


@dataclass(frozen=True)
class _Rule:
    """What of an update is kept, counted.

    Args:
        latest: Numbers of the updates that matter.
        floor: Number up to which every kept index has merged the log.
        old: Time before which merged and neutral states may go.
        needed: Updates up to the floor whose content stays, and the ad of each.
    """

    latest: _Latest
    floor: int
    old: int
    needed: dict[int, str]
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def waiting(self) -> list[str]:
        """Ads whose content stays, each once."""
        return list(dict.fromkeys(self.needed.values()))

    @cached_property
    def _whole(self) -> frozenset[str]:
        return frozenset(self.needed.values())

    def __call__(self, update: Update) -> Update | None:
        """What is left of an update; None where nothing is."""
        left = self._left(update)
        is_left = left.has_state or left.content is not None
        self.counts["before"] += 1
        self.counts["after"] += is_left
        self.counts["replaced"] += not is_left and update.content is None and not self._is_latest(update)
        return left if is_left else None

    def _is_latest(self, update: Update) -> bool:
        """Whether a field of it was said last by it."""
        numbers = (getattr(self.latest, one.name).get(update.ad_id) for one in fields(self.latest))
        return update.seq in numbers

    def _left(self, update: Update) -> Update:
        seq, ad_id, latest = update.seq, update.ad_id, self.latest
        may_go = seq <= self.floor and update.at < self.old and ad_id not in self._whole
        return replace(
            update,
            status=update.status if latest.status.get(ad_id) == seq and not may_go else None,
            bid=update.bid if latest.bid.get(ad_id) == seq and not may_go else UNSET,
            takedown=update.takedown if latest.takedown.get(ad_id) == seq and (update.takedown or not may_go) else None,
            budget=update.budget if latest.budget.get(ad_id) == seq and (_is_spent(update) or not may_go) else UNSET,
            content=update.content if seq > self.floor or seq in self.needed else None,
        )


def _is_spent(update: Update) -> bool:
    return isinstance(update.budget, int | float) and update.budget <= 0


def _merged_by_all(manifest: LogManifest, kept: Iterable[UpdatePosition | None]) -> int:
    merged = [position.seq if position is not None and position.log == manifest.log else 0 for position in kept]
    return min(merged, default=0)


def _latest(updates: Iterable[Update]) -> _Latest:
    latest = _Latest({}, {}, {}, {})
    for update in updates:
        if update.status is not None:
            latest.status[update.ad_id] = update.seq
        if update.bid is not UNSET:
            latest.bid[update.ad_id] = update.seq
        if update.takedown is not None:
            latest.takedown[update.ad_id] = update.seq
        if update.budget is not UNSET:
            latest.budget[update.ad_id] = update.seq
    return latest


def check_sound(log: UpdateLog) -> None:
    """Refuse a log that could not be compacted, with an ArtifactError."""
    for _ in _sound(log):
        pass


def _sound(log: UpdateLog) -> Iterator[Update]:
    """All updates; an ArtifactError at the end where lines are damaged."""
    reader = UpdateLog(log.directory)
    yield from reader.read()
    if reader.damaged:
        raise ArtifactError(
            f"{reader.damage[0]}: {reader.damaged} damaged lines in all: the log is not compacted, since what they "
            "held would be lost for good; restore the segment from a backup, or say again what they said and begin "
            "another log with `adsieve index update --new-log`"
        )


def _needed(log: UpdateLog, floor: int, held: Held | None) -> dict[int, str]:
    """Updates that every kept index has merged and whose content no catalogue has, and the ad of each."""
    needed: dict[int, str] = {}
    if held is None or not floor:
        return needed
    reading = UpdateLog(log.directory).read()
    contents = (update for update in reading if update.seq <= floor and update.content is not None)
    while updates := list(islice(contents, _LINES_AT_ONCE)):
        held_ones = held(updates)
        needed |= {one.seq: one.ad_id for one, is_held in zip(updates, held_ones, strict=True) if not is_held}
    return needed


def _left(log: UpdateLog, rule: _Rule, last: int) -> Iterator[list[Update]]:
    """What is left of the updates up to number ``last``, some at a time."""
    reading = UpdateLog(log.directory).read()
    while updates := list(islice(reading, _LINES_AT_ONCE)):
        left = [kept for update in updates if update.seq <= last and (kept := rule(update)) is not None]
        if left:
            yield left


def _rewrite(log: UpdateLog, manifest: LogManifest, rule: _Rule, last: int) -> None:
    """Write what is left to new segments, and make them the log."""
    segments: list[Segment] = []
    offset = 0
    try:
        for left in _left(log, rule, last):
            if not segments or offset >= SEGMENT_BYTES:
                segments.append(log.new_segment(left[0].seq))
                offset = 0
            data = encode_batch(left)
            log.write(segments[-1], offset, data)
            offset += len(data)
    except BaseException:
        log.remove_strays(manifest)
        raise
    log.replace(manifest, [*segments, log.new_segment(last + 1)], floor=rule.floor)
