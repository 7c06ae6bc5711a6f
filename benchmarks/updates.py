"""Updates through the day: how fast the log takes and gives them, and how fast an overlay has them in effect.

``python -m benchmarks.updates --two-tower BUNDLE --heavy BUNDLE --ads DATASET``: builds an index of the dataset,
appends a million bids and takedowns in lots of 10,000, one more as a new process would, reads them back, applies them,
then applies every row of the scenario once more as changed content. One process and one thread; an overlay reader is
compared with the index itself at 1,000 ids.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from msgspec.structs import replace

from benchmarks.harness import Target, finish, parser
from contracts.bundle import open_bundle
from contracts.records import dataset_files
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.live import LiveIndex
from indexing.nightly import build_index
from indexing.overlay_stops import Stops
from indexing.overlay_writer import OverlayWriter
from indexing.update_log import UpdateLog
from indexing.update_parquet import read_parquet
from indexing.update_record import Update
from indexing.update_survey import survey

RECORDS, LOT, ASKED, ROUNDS = 1_000_000, 10_000, 1_000, 200
MAX_REPLAY_S, MAX_VISIBLE_MS, MAX_APPEND_MS = 10.0, 500.0, 10.0


def main() -> int:
    """Run and print; see the module."""
    options = parser(__doc__)
    options.add_argument("--two-tower", type=Path, required=True)
    options.add_argument("--heavy", type=Path, required=True)
    options.add_argument("--ads", required=True)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        figures = _measure(given.two_tower, given.heavy, given.ads, Path(name))
    targets = [
        Target("a million updates are replayed, s", figures["replay_s"], at_most=MAX_REPLAY_S),
        Target("one update more in a log of a million, ms", figures["one_more_ms"], at_most=MAX_APPEND_MS),
        Target("one takedown from append to reader, ms", figures["takedown_visible_ms"], at_most=MAX_VISIBLE_MS),
    ]
    return finish(given, figures, targets)


def _measure(two_tower: Path, heavy: Path, ads: str, directory: Path) -> dict[str, float]:
    build_index(ads=ads, two_tower=two_tower, heavy=heavy, out=directory / "index", config=IndexConfig())
    index, bundle = Index.open(directory / "index", verify=False), open_bundle(two_tower)
    ids = index.id_table.ids(np.arange(len(index)))
    log = UpdateLog(directory / "updates")
    states = [_state(ids[number % len(ids)], number) for number in range(RECORDS)]
    figures: dict[str, float] = {"ads": float(len(index))}
    figures["append_per_s"] = RECORDS / _seconds(lambda: _append(log, states))
    figures["first_survey_ms"] = 1000 * _seconds(lambda: survey(log.directory))
    figures["one_more_ms"] = 1000 * median(_seconds(lambda: _one_more(log, ids[0])) for _ in range(20))
    figures["survey_after_one_ms"] = 1000 * _seconds(lambda: survey(log.directory))
    figures["read_per_s"] = RECORDS / _seconds(lambda: sum(1 for _ in UpdateLog(log.directory).read()))
    parts = index, bundle, open_bundle(heavy), UpdateLog(log.directory), directory / "overlay"
    writer = OverlayWriter(*parts, stops=Stops(directory / "stops"))
    figures["replay_s"] = _seconds(lambda: _catch_up(writer))
    live = LiveIndex.open(index, bundle.schema, directory / "overlay")
    if live is None:
        raise RuntimeError("the writer has published no overlay")
    contents = [
        replace(update, content=replace(update.content, valid_from=update.content.valid_from + 10**15))
        for file in dataset_files(ads)
        for _, update in read_parquet(Path(file), {})
        if update.content is not None and update.content.scenario == index.scenario
    ]
    asked = ids[:ASKED]
    figures["lookup_no_rows_us"] = _microseconds(lambda: live.pins(live.lookup(asked)))
    figures["lookup_index_us"] = _microseconds(lambda: index.pins.take(index.id_table.lookup(asked)))
    log.append(contents)
    figures["contents"] = float(len(contents))
    figures["content_per_s"] = len(contents) / _seconds(lambda: _catch_up(writer))
    live.refresh()
    figures["lookup_changed_us"] = _microseconds(lambda: live.pins(live.lookup(asked)))
    figures["takedown_visible_ms"] = 1000 * median(_takedown_s(log, writer, live, ad_id) for ad_id in ids[:20])
    writer.close()
    return figures


def _state(ad_id: str, number: int) -> Update:
    if number % 10 == 0:
        return Update(ad_id=ad_id, at=number, takedown=number % 20 == 0)
    return Update(ad_id=ad_id, at=number, bid=(number % 97) / 10)


def _append(log: UpdateLog, updates: list[Update]) -> None:
    for start in range(0, len(updates), LOT):
        log.append(updates[start : start + LOT])


def _one_more(log: UpdateLog, ad_id: str) -> None:
    UpdateLog(log.directory).append([Update(ad_id=ad_id, at=0, takedown=False)])


def _catch_up(writer: OverlayWriter) -> None:
    while writer.apply_pending():
        pass


def _takedown_s(log: UpdateLog, writer: OverlayWriter, live: LiveIndex, ad_id: str) -> float:
    rows = live.lookup([ad_id])
    started = time.perf_counter()
    log.append([Update(ad_id=ad_id, at=0, takedown=True)])
    writer.apply_pending()
    if live.servable(rows).any():
        raise RuntimeError("a takedown is not in effect")
    return time.perf_counter() - started


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _microseconds(work: Callable[[], object]) -> float:
    return 1e6 * median(_seconds(work) for _ in range(ROUNDS))


if __name__ == "__main__":
    sys.exit(main())
