"""Updates of the day, merged into a build: new and changed ads beside the catalogue's rows, status and bid over them.

What counts is told in ``indexing.update_record``; takedowns and budgets stay in the log. A build reads the log once, up
to a position, and keeps what it found in files, so that a build that goes on later merges the same.

    contents.jsonl      ads whose content is newer than the catalogue's row, in the log's order, with status and bid
    states/             the latest status and bid of each ad that the log names, by row of an id table
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from contracts.records import STATUSES
from contracts.release import UpdatePosition
from indexing.ad_states import AdStates, States
from indexing.arrays import ArrayWriter
from indexing.attributes import ATTRIBUTES, AdAttributes
from indexing.id_table import IdTable
from indexing.overlay_content import OF_RECORD, ContentEmbedder, NewAd, content_table
from indexing.update_log import UpdateLog
from indexing.update_record import Content, Update, decode_update, encode_update

CONTENTS, STATES, SOURCE = "contents.jsonl", "states", "updates"
NEVER = -(1 << 62)
_AT_ONCE = 1024


@dataclass(frozen=True)
class Contents:
    """The newest content of each of N ads in a log: of the largest ``valid_from``, the first where several are equal.

    Args:
        ids: Text [N].
        valid_from: Microseconds UTC, int64 [N].
        ours: Whether it is of the scenario that is built, bool [N].
        seqs: Number of the update, int64 [N].
    """

    ids: pa.StringArray
    valid_from: np.ndarray
    ours: np.ndarray
    seqs: np.ndarray


@dataclass(frozen=True)
class Row:
    """What the catalogue says of an ad whose content an update replaces; without a row, it began before all times."""

    valid_from: int = NEVER
    status: str | None = None
    bid: float | None = None


class UpdatesToMerge:
    """The updates of a log up to its end as it is now, and up to a moment.

    Args:
        log: Of the store.
        embedder: Tells which content the bundles can take.
        as_of: Leave out what is decided, or valid, later; microseconds UTC.
    """

    def __init__(self, log: UpdateLog, embedder: ContentEmbedder, as_of: int | None) -> None:
        self._log, self._embedder, self._as_of = log, embedder, as_of
        self.position: UpdatePosition | None = log.end

    @property
    def faults(self) -> dict[str, int]:
        """Why content was refused, and how often."""
        return {f"{SOURCE}: {fault}": count for fault, count in self._embedder.faults.items()}

    def newest(self, scenario: str, refused: set[int]) -> Contents:
        """The newest content of each ad that is not refused."""
        found: dict[str, tuple[int, int, bool]] = {}
        for update in self._all():
            content = update.content
            if content is None or update.seq in refused or self._is_later(content.valid_from):
                continue
            known = found.get(update.ad_id)
            if known is None or content.valid_from > known[0]:
                found[update.ad_id] = (content.valid_from, update.seq, content.scenario == scenario)
        times, seqs, ours = zip(*found.values(), strict=True) if found else ((), (), ())
        ids = pa.array(list(found), pa.string())
        return Contents(ids, np.array(times, np.int64), np.array(ours, bool), np.array(seqs, np.int64))

    def refused(self, seqs: np.ndarray) -> set[int]:
        """Which of these updates hold content that the bundles cannot take."""
        refused: set[int] = set()
        waiting = iter(self._of(set(seqs.tolist())))
        while ads := [
            NewAd(ad_id=update.ad_id, seq=update.seq, content=content) for update, content in islice(waiting, _AT_ONCE)
        ]:
            usable = {int(place) for part in self._embedder.embed(ads) for place in part.places}
            refused |= {ad.seq for place, ad in enumerate(ads) if place not in usable}
        return refused

    def write(self, directory: Path, rows: Mapping[int, Row]) -> "MergedUpdates":
        """Keep what is merged in ``directory``.

        Args:
            rows: By number of the update that replaces it, the catalogue's row.
        """
        states = AdStates()
        for update in self._all():
            if not self._is_later(update.at):
                states.take_in(update)
        latest = states.at(np.arange(len(states)))
        (directory / STATES).mkdir()
        IdTable.build(list(states.slots), directory / STATES / "ids")
        for field in fields(States):
            values = getattr(latest, field.name)
            with ArrayWriter(directory / STATES / f"{field.name}.npy", values.dtype) as writer:
                writer.append(values)
        with open(directory / CONTENTS, "wb") as file:
            for update, _ in self._of(set(rows)):
                whole = _with_state(update, rows[update.seq], latest, states.slots.get(update.ad_id))
                file.write(encode_update(whole) + b"\n")
        return MergedUpdates.open(directory)

    def _is_later(self, moment: int) -> bool:
        return self._as_of is not None and moment > self._as_of

    def _all(self) -> Iterator[Update]:
        if self.position is None:
            return
        for update in self._log.read():
            if update.seq > self.position.seq:
                return
            yield update

    def _of(self, seqs: set[int]) -> Iterator[tuple[Update, Content]]:
        if seqs:
            for update in self._all():
                if update.seq in seqs and update.content is not None:
                    yield update, update.content


def _with_state(update: Update, row: Row, latest: States, slot: int | None) -> Update:
    """The update with the status and bid that the ad has: what the log says since the catalogue's row, else that."""
    status, bid = row.status, row.bid
    if slot is not None and _applies(latest.status_seq[slot], latest.status_at[slot], row, update):
        status = STATUSES[latest.status[slot]]
    if slot is not None and _applies(latest.bid_seq[slot], latest.bid_at[slot], row, update):
        bid = None if np.isnan(latest.bids[slot]) else float(latest.bids[slot])
    return Update(seq=update.seq, ad_id=update.ad_id, at=update.at, status=status, bid=bid, content=update.content)


def _applies(seq: int, at: int, row: Row, update: Update) -> bool:
    """Whether a state counts for content: it is newer than the catalogue's row, or of the content's update or later."""
    return seq > 0 and (at > row.valid_from or seq >= update.seq)


@dataclass(frozen=True)
class MergedUpdates:
    """What ``UpdatesToMerge.write`` kept.

    Args:
        directory: With its files.
        ids: Ads that the log says a status or a bid of.
        states: The latest, by row of ``ids``.
    """

    directory: Path
    ids: IdTable
    states: States

    @classmethod
    def open(cls, directory: Path) -> "MergedUpdates":
        """Read the files in ``directory``."""
        folder = directory / STATES
        columns = {field.name: np.load(folder / f"{field.name}.npy", allow_pickle=False) for field in fields(States)}
        return cls(directory, IdTable.open(folder / "ids"), States(**columns))

    def batches(self, columns: Sequence[str], batch_size: int, skip_rows: int = 0) -> Iterator[tuple[pa.Table, str]]:
        """Stream the ads whose content is merged as rows of a catalogue.

        Args:
            columns: Of the features and attributes to give.
            skip_rows: Ads at the beginning to leave out.
        """
        with open(self.directory / CONTENTS, "rb") as file:
            lines = islice(file, skip_rows, None)
            while updates := [decode_update(line) for line in islice(lines, batch_size)]:
                yield _table(updates, columns), SOURCE

    def over(self, ids: pa.StringArray, valid_from: np.ndarray, attributes: AdAttributes, now: int) -> AdAttributes:
        """The attributes of A ads of the catalogue with the latest status and bid where the log has later ones.

        A row is not later than what was said of its ad before it began: one that begins after ``now`` (microseconds
        UTC) overrules nothing.

        Args:
            valid_from: Of the rows, int64 [A].
        """
        valid_from = np.where(valid_from > now, NEVER, valid_from)
        if not len(self.ids):
            return attributes
        rows = self.ids.lookup(ids.to_pylist())
        named = np.flatnonzero(rows >= 0)
        if not len(named):
            return attributes
        rows, states = rows[named], self.states
        status, bids = attributes.status.copy(), attributes.bids.copy()
        fresh = (states.status_seq[rows] > 0) & (states.status_at[rows] > valid_from[named])
        status[named[fresh]] = states.status[rows[fresh]]
        fresh = (states.bid_seq[rows] > 0) & (states.bid_at[rows] > valid_from[named])
        bids[named[fresh]] = states.bids[rows[fresh]]
        return replace(attributes, status=status, bids=bids)


def _table(updates: Sequence[Update], columns: Sequence[str]) -> pa.Table:
    ads = [NewAd(update.ad_id, update.seq, update.content) for update in updates if update.content is not None]
    features = [name for name in columns if name not in (*OF_RECORD, *ATTRIBUTES, "valid_from")]
    table = content_table(ads, features)
    of_record = {
        "valid_from": pa.array([ad.content.valid_from for ad in ads], pa.timestamp("us", "UTC")),
        "status": pa.array([update.status for update in updates], pa.string()),
        "bid": pa.array([None if update.bid is UNSET else update.bid for update in updates], pa.float64()),
    }
    for name, column in of_record.items():
        at = table.schema.get_field_index(name)
        table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    return table
