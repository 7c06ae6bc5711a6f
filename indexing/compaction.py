"""Makes a log of updates smaller without changing what it does to any index that is kept.

Of each ad only the latest status, bid, takedown and budget matter, so fields that a later update sets are taken out of
earlier ones. Content that every kept index has merged goes. So does, after some days, a status or bid that every kept
index has merged, and what only says that nothing is wrong: a lifted takedown, a budget that is left. A takedown that
stands is never dropped. Numbers stay, so that a position in the log means the same before and after.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Compaction:
    """What a compaction did: updates in the log before and after, and up to where content was dropped."""

    before: int
    after: int
    floor: int


def compact(
    log: UpdateLog,
    kept: Iterable[UpdatePosition | None],
    *,
    keep_days: float = KEEP_DAYS,
    now_us: int | None = None,
) -> Compaction:
    """Compact a log in place, in one step; appending waits meanwhile, readers need not.

    Args:
        log: Of a store. Where there is none, nothing is done.
        kept: How far each index that is kept has merged the log; an index that has not, and no index at all, keep all
            content.
        keep_days: Age from which merged and neutral states may go.
        now_us: Microseconds since 1970 UTC; the clock's by default.

    Raises:
        AdsieveError: The disk is full; the log is as it was.
        ArtifactError: The log cannot be read, or has damaged lines.
    """
    with log.locked():
        manifest = log.manifest()
        if manifest is None:
            return Compaction(0, 0, 0)
        end = log.end
        last = end.seq if end is not None else 0
        floor = max(manifest.floor, _merged_by_all(manifest, kept))
        now = time.time_ns() // 1000 if now_us is None else now_us
        reader = UpdateLog(log.directory)
        latest = _latest(reader.read())
        if reader.damaged:
            raise ArtifactError(
                f"{reader.damage[0]}: {reader.damaged} damaged lines in all: the log is not compacted, since what they "
                "held would be lost for good; restore the segment from a backup, or say again what they said and begin "
                "another log with `adsieve index update --new-log`"
            )
        rule = _Rule(latest, floor, now - int(keep_days * _DAY_US))
        counts = [0, 0]
        segments: list[Segment] = []
        try:
            for segment in _rewrite(log, rule, counts, last):
                segments.append(segment)
        except BaseException:
            log.remove_strays(manifest)
            raise
        log.replace(manifest, [*segments, log.new_segment(last + 1)], floor=floor)
        return Compaction(before=counts[0], after=counts[1], floor=floor)


@dataclass(frozen=True)
class _Latest:
    """Number of the latest update that sets each field, by ad."""

    status: dict[str, int]
    bid: dict[str, int]
    takedown: dict[str, int]
    budget: dict[str, int]


@dataclass(frozen=True)
class _Rule:
    """What of an update is kept; ``old`` is the time before which merged and neutral states may go."""

    latest: _Latest
    floor: int
    old: int

    def __call__(self, update: Update) -> Update | None:
        """What is left of an update; None where nothing is."""
        seq, ad_id, latest = update.seq, update.ad_id, self.latest
        may_go = seq <= self.floor and update.at < self.old
        left = replace(
            update,
            status=update.status if latest.status.get(ad_id) == seq and not may_go else None,
            bid=update.bid if latest.bid.get(ad_id) == seq and not may_go else UNSET,
            takedown=update.takedown if latest.takedown.get(ad_id) == seq and (update.takedown or not may_go) else None,
            budget=update.budget if latest.budget.get(ad_id) == seq and (_is_spent(update) or not may_go) else UNSET,
            content=update.content if seq > self.floor else None,
        )
        return left if left.has_state or left.content is not None else None


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


def _rewrite(log: UpdateLog, rule: _Rule, counts: list[int], last: int) -> Iterator[Segment]:
    """Write what is left to new segments; ``counts`` become the updates read and written."""
    segment, offset = None, 0
    reading = UpdateLog(log.directory).read()
    while updates := list(islice(reading, _LINES_AT_ONCE)):
        counts[0] += len(updates)
        left = [kept for update in updates if update.seq <= last and (kept := rule(update)) is not None]
        if not left:
            continue
        counts[1] += len(left)
        if segment is None or offset >= SEGMENT_BYTES:
            segment, offset = log.new_segment(left[0].seq), 0
            yield segment
        data = encode_batch(left)
        log.write(segment, offset, data)
        offset += len(data)
