"""Finds the catalogue as of a moment: the newest row of each ad, from a dataset of any size, in bounded memory.

Ids and times alone are read, spread over temporary files by the hash of the id, and decided file by file, each of which
fits into memory. New and changed ads of the log of updates take part like rows; they are never ties of a row, the
catalogue's row counts where both begin at one moment.
"""

import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from contracts.artifact import fsync, write_json
from contracts.errors import LogError
from contracts.records import OPTIONAL_COLUMNS, REQUIRED_COLUMNS, check_columns
from contracts.release import UpdatePosition
from indexing.arrays import create_mapped
from indexing.catalog import Catalog, read_dataset, source_name
from indexing.merge import NEVER, Contents, MergedUpdates, Row, UpdatesToMerge
from indexing.plan_parts import BATCH_ROWS, SPILLED, hash_share, read_part, spill

_KEPT, _PLAN = "kept.npy", "plan.json"
_COUNTS = ("rows", "later", "superseded", "other_scenario", "kept", "merged", "refused", "ahead", "no_scenario")
_DAY_US = 86_400_000_000
_LEFT_OUT = {
    "later": "only begin later",
    "superseded": "are replaced by newer ones",
    "other_scenario": "are of another scenario",
    "no_scenario": "have none",
    "refused": "come from updates that are refused",
}


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What of a catalogue is no array."""

    counts: dict[str, int]
    faults: dict[str, int]
    watermark: int
    made_at: int
    position: UpdatePosition | None


def plan_catalog(
    dataset: ds.Dataset,
    *,
    scenario: str,
    as_of: int | None,
    directory: Path,
    updates: Callable[[], UpdatesToMerge] | None = None,
) -> Catalog:
    """Find the newest row of each ad, and keep it where it is of ``scenario``.

    Args:
        dataset: Columns ``ad_id``, ``valid_from``, ``scenario``.
        as_of: Microseconds UTC; rows that begin later are left out. None takes all rows. The watermark is the latest
            row taken that does not lie ahead, never ``as_of`` itself, so that a moment in the future hides no update
            that is still to come. Where there is none, it is now or, if that is earlier, ``as_of``.
        directory: To create, for the files of the catalogue; :func:`open_plan` opens them again.
        updates: Called once the ids are read, gives what of a store's log is to be merged.

    Raises:
        LogError: Columns are missing or of a wrong type, an ad has two rows with the same ``valid_from``, or nothing is
            left.
    """
    check_columns(dataset.schema, REQUIRED_COLUMNS["ads"], source=source_name(dataset))
    if not dataset.count_rows():
        raise LogError(f"{source_name(dataset)}: has no rows")
    shutil.rmtree(directory, ignore_errors=True)
    spilled = directory / "spilled"
    spilled.mkdir(parents=True)
    made_at = time.time_ns() // 1000
    parts, num_without = spill(dataset, scenario, spilled)
    merge = updates() if updates is not None else None
    chosen = _choose_usable(parts, dataset, scenario, as_of, directory / _KEPT, merge, made_at)
    chosen.counts["no_scenario"] = num_without
    shutil.rmtree(spilled)
    if not chosen.counts["kept"] + chosen.counts["merged"]:
        raise LogError(
            f"{source_name(dataset)}: no ad of scenario {scenario!r} as of this moment: {_left_out(chosen.counts)}"
        )
    merged = merge.write(directory, _replaced_rows(dataset, chosen.winners, made_at)) if merge is not None else None
    plan = _Plan(
        counts=chosen.counts,
        faults=merge.faults if merge is not None else {},
        watermark=chosen.watermark if chosen.watermark > NEVER else min(made_at, made_at if as_of is None else as_of),
        made_at=made_at,
        position=merge.position if merge is not None else None,
    )
    for path in directory.rglob("*"):
        fsync(path)
    write_json(directory / _PLAN, plan)
    return _catalog(dataset, directory, plan, merged)


def _left_out(counts: dict[str, int]) -> str:
    """Of a catalogue that leaves nothing: where its rows went."""
    told = [f"{counts[name]:,} {words}" for name, words in _LEFT_OUT.items() if counts[name]]
    return f"of {counts['rows']:,} rows {', '.join(told)}"


def open_plan(dataset: ds.Dataset, directory: Path) -> Catalog | None:
    """Open what ``plan_catalog`` found for the same dataset; None where it did not finish."""
    with suppress(OSError, ValueError, msgspec.DecodeError):
        plan = msgspec.json.decode((directory / _PLAN).read_bytes(), type=_Plan)
        merged = MergedUpdates.open(directory) if (directory / "states").is_dir() else None
        return _catalog(dataset, directory, plan, merged)
    return None


def _catalog(dataset: ds.Dataset, directory: Path, plan: _Plan, merged: MergedUpdates | None) -> Catalog:
    kept = np.load(directory / _KEPT, mmap_mode="r", allow_pickle=False)
    return Catalog(dataset, kept, plan.watermark, plan.counts, merged, plan.position, plan.faults, plan.made_at)


@dataclass(frozen=True)
class _Winner:
    """Content that is newer than the catalogue's row ``row`` (-1: there is none), which began at ``time``."""

    seq: int
    row: int
    time: int


@dataclass(frozen=True)
class _Chosen:
    counts: dict[str, int]
    watermark: int
    winners: list[_Winner]


def _choose_usable(
    parts: Sequence[Path],
    dataset: ds.Dataset,
    scenario: str,
    as_of: int | None,
    kept: Path,
    updates: UpdatesToMerge | None,
    made_at: int,
) -> _Chosen:
    """Choose, and choose again without the content that the bundles cannot take, as if it had never come."""
    refused: set[int] = set()
    while True:
        contents = updates.newest(scenario, refused) if updates is not None else None
        chosen = _choose_all(parts, dataset, contents, as_of, kept, made_at)
        bad = set() if updates is None else updates.refused(np.array([one.seq for one in chosen.winners], np.int64))
        if not bad:
            chosen.counts["refused"] = len(refused)
            return chosen
        refused |= bad


def _choose_all(
    parts: Sequence[Path], dataset: ds.Dataset, contents: Contents | None, as_of: int | None, path: Path, made_at: int
) -> _Chosen:
    num_rows = dataset.count_rows()
    kept = create_mapped(path, np.uint8, (-(-num_rows // 8),))
    counts, watermark, winners = dict.fromkeys(_COUNTS, 0), NEVER, []
    shares = None if contents is None else hash_share(contents.ids, len(parts))
    for number, part in enumerate(parts):
        table = read_part(part)
        if contents is not None and shares is not None:
            table = pa.concat_tables([table, _as_rows(contents, np.flatnonzero(shares == number))]).combine_chunks()
        found = _choose(table, as_of, kept, dataset, contents, made_at)
        counts = {name: count + found.counts.get(name, 0) for name, count in counts.items()}
        watermark = max(watermark, found.watermark)
        winners += found.winners
    kept.flush()
    return _Chosen(counts, watermark, sorted(winners, key=lambda winner: winner.seq))


def _as_rows(contents: Contents, places: np.ndarray) -> pa.Table:
    """Content as rows of the spilled files; place k is row -1 - k."""
    return pa.table(
        [
            contents.ids.take(pa.array(places)),
            pa.array(contents.valid_from[places]),
            pa.array(-1 - places),
            pa.array(contents.ours[places]),
        ],
        schema=SPILLED,
    )


def _choose(
    table: pa.Table,
    as_of: int | None,
    kept: np.ndarray,
    dataset: ds.Dataset,
    contents: Contents | None,
    made_at: int,
) -> _Chosen:
    """Mark the rows to keep among all rows of some ads."""
    times, rows, codes = table["time"].to_numpy(), table["row"].to_numpy(), _codes(table["ad_id"])
    of_catalogue = rows >= 0
    order = np.lexsort((of_catalogue, times, codes))
    _refuse_ties(table, dataset, times, rows, codes, order)
    in_time = order if as_of is None else order[times[order] <= as_of]
    newest = np.r_[np.diff(codes[in_time]) != 0, np.ones(min(len(in_time), 1), bool)]
    places = np.flatnonzero(newest)
    ours = table["ours"].to_numpy()[in_time[places]]
    mine = of_catalogue[in_time[places]]
    kept_rows = rows[in_time[places[ours & mine]]]
    np.bitwise_or.at(kept, kept_rows >> 3, (1 << (kept_rows & 7)).astype(np.uint8))
    num_rows, num_in_time = int(of_catalogue.sum()), int(of_catalogue[in_time].sum())
    counts = {
        "rows": num_rows,
        "later": num_rows - num_in_time,
        "superseded": num_in_time - int(mine.sum()),
        "other_scenario": int((mine & ~ours).sum()),
        "kept": len(kept_rows),
        "merged": int((ours & ~mine).sum()),
        "ahead": int((times[in_time[places[ours & mine]]] > made_at + _DAY_US).sum()),
    }
    winners = [] if contents is None else _winners(in_time, places[ours & ~mine], rows, times, codes, contents)
    of_rows = times[in_time][of_catalogue[in_time]]
    watermark = int(of_rows[of_rows <= made_at].max(initial=NEVER))
    return _Chosen(counts, watermark, winners)


def _winners(
    in_time: np.ndarray, places: np.ndarray, rows: np.ndarray, times: np.ndarray, codes: np.ndarray, contents: Contents
) -> list[_Winner]:
    """The content at these places of the order, each with the catalogue's row before it where it is of the same ad."""
    here, before = in_time[places], in_time[np.maximum(places - 1, 0)]
    has_row = (places > 0) & (codes[before] == codes[here])
    seqs = contents.seqs[-1 - rows[here]]
    replaced, since = np.where(has_row, rows[before], -1), np.where(has_row, times[before], NEVER)
    return [_Winner(*values) for values in zip(seqs.tolist(), replaced.tolist(), since.tolist(), strict=True)]


def _replaced_rows(dataset: ds.Dataset, winners: Sequence[_Winner], made_at: int) -> dict[int, Row]:
    """What the catalogue says of the ads that content replaces, by number of the update.

    A row that lies ahead is later than no state of an ad, see ``indexing.merge``.
    """
    wanted = {winner.row: winner for winner in winners if winner.row >= 0}
    replaced = {winner.seq: Row() for winner in winners}
    present = [name for name in ("status", "bid") if name in dataset.schema.names]
    if not wanted:
        return replaced
    rows = np.array(sorted(wanted), np.int64)
    start = 0
    check_columns(
        dataset.schema, {name: OPTIONAL_COLUMNS["ads"][name] for name in present}, source=source_name(dataset)
    )
    for _, batch in read_dataset(dataset, ["ad_id", *present], BATCH_ROWS):
        here = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(batch))]
        told = batch.take(pa.array(here - start)).to_pylist()
        start += len(batch)
        for row, values in zip(here.tolist(), told, strict=True):
            winner = wanted[row]
            bid = values.get("bid")
            # JSON, in which the row is kept, has no NaN or infinity; -1 is refused as they are.
            storable = bid is None or math.isfinite(bid)
            began = winner.time if winner.time <= made_at else NEVER
            replaced[winner.seq] = Row(began, values.get("status"), bid if storable else -1.0)
    return replaced


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    encoded = column.combine_chunks().dictionary_encode()
    indices = encoded.indices if isinstance(encoded, pa.DictionaryArray) else encoded.combine_chunks().indices
    return np.asarray(indices).astype(np.int64)


def _refuse_ties(
    table: pa.Table, dataset: ds.Dataset, times: np.ndarray, rows: np.ndarray, codes: np.ndarray, order: np.ndarray
) -> None:
    """Refuse two rows of the dataset with one ad and one moment."""
    tied = (np.diff(codes[order]) == 0) & (np.diff(times[order]) == 0) & (rows[order[:-1]] >= 0)
    places = np.flatnonzero(tied)
    if len(places):
        first, second = order[places[0]], order[places[0] + 1]
        raise LogError(_describe_tie(table, dataset, rows[[first, second]], first, len(places)))


def _describe_tie(table: pa.Table, dataset: ds.Dataset, rows: np.ndarray, at: int, count: int) -> str:
    fragments = list(dataset.get_fragments())
    ends = np.cumsum([fragment.count_rows() for fragment in fragments])
    first, second = (fragments[int(np.searchsorted(ends, row, side="right"))].path for row in sorted(rows))
    moment = pa.scalar(table["time"][int(at)].as_py(), pa.timestamp("us", "UTC")).as_py().isoformat()
    return (
        f"{second}: ad {table['ad_id'][int(at)].as_py()!r} has a second row with valid_from {moment}, "
        f"the other is in {first}; {count} such rows; keep one of each"
    )
