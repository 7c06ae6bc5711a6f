"""Compaction keeps what any kept index needs, positions included, in one step."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from contracts.errors import AdsieveError, ArtifactError
from contracts.release import UpdatePosition
from indexing import compaction, update_log
from indexing.compaction import compact
from indexing.update_log import UpdateLog
from indexing.update_record import Content, Update

DAY_US = 86_400_000_000
NOW = 100 * DAY_US


@pytest.fixture
def log(tmp_path: Path) -> UpdateLog:
    return UpdateLog(tmp_path / "updates")


def content(at: int) -> Content:
    return Content(scenario="s", valid_from=at, features={})


def told(log: UpdateLog) -> list[tuple[int, str, object]]:
    """What each update left in the log says, field by field."""
    found = []
    for update in UpdateLog(log.directory).read():
        for name, unset in (("status", None), ("bid", UNSET), ("takedown", None), ("budget", UNSET), ("content", None)):
            if getattr(update, name) is not unset:
                found.append((update.seq, update.ad_id, name))
    return found


def test_a_log_that_is_not_there_needs_nothing(log: UpdateLog) -> None:
    assert compact(log, []).before == 0


def test_the_latest_of_each_field_stays_under_its_number(log: UpdateLog) -> None:
    log.append(
        [
            Update(ad_id="a", at=NOW, status="paused", bid=1.0),
            Update(ad_id="a", at=NOW, status="active"),
            Update(ad_id="b", at=NOW, takedown=True, budget=0.0),
            Update(ad_id="b", at=NOW, takedown=False),
            Update(ad_id="a", at=NOW, bid=None),
        ]
    )
    end = log.end
    done = compact(log, [end], now_us=NOW)
    assert (done.before, done.after, done.floor) == (5, 4, 5)
    assert told(log) == [(2, "a", "status"), (3, "b", "budget"), (4, "b", "takedown"), (5, "a", "bid")]
    assert log.end == end
    assert log.append([Update(ad_id="c", at=0, bid=1.0)]).seq == 6


@pytest.mark.parametrize("kept", [[], [None], [UpdatePosition(log="another", seq=3)]])
def test_content_that_no_kept_index_is_known_to_hold_stays(log: UpdateLog, kept: list[UpdatePosition | None]) -> None:
    log.append([Update(ad_id="a", at=0, content=content(number)) for number in range(3)])
    compact(log, kept, now_us=NOW)
    assert len(told(log)) == 3
    assert log.covers(None)


def test_content_goes_that_all_kept_indexes_hold_and_an_older_index_is_not_covered(log: UpdateLog) -> None:
    log.append([Update(ad_id="a", at=0, content=content(number)) for number in range(5)])
    position = log.end
    kept = [UpdatePosition(log=position.log, seq=seq) for seq in (4, 3)]
    compact(log, kept, now_us=NOW)
    assert told(log) == [(4, "a", "content"), (5, "a", "content")]
    assert [log.covers(UpdatePosition(log=position.log, seq=seq)) for seq in (2, 3, 4)] == [False, True, True]
    assert not log.covers(None)


def test_what_is_old_and_merged_goes_but_never_a_takedown_or_a_spent_budget(log: UpdateLog) -> None:
    old, new = NOW - 31 * DAY_US, NOW - 29 * DAY_US
    log.append(
        [
            Update(ad_id="a", at=old, status="paused", bid=1.0),
            Update(ad_id="b", at=new, status="paused"),
            Update(ad_id="down", at=old, takedown=True),
            Update(ad_id="spent", at=old, budget=0.0),
            Update(ad_id="lifted", at=old, takedown=False, budget=None),
            Update(ad_id="later", at=old, bid=1.0),
        ]
    )
    merged = UpdatePosition(log=log.end.log, seq=5)
    compact(log, [merged], now_us=NOW)
    expected = [(2, "b", "status"), (3, "down", "takedown"), (4, "spent", "budget"), (6, "later", "bid")]
    assert told(log) == expected
    compact(log, [merged], now_us=0)
    assert told(log) == expected


def test_a_reader_that_holds_a_position_goes_on_as_if_nothing_had_happened(log: UpdateLog) -> None:
    log.append([Update(ad_id=f"ad-{number % 3}", at=0, bid=float(number)) for number in range(9)])
    reader = UpdateLog(log.directory)
    iterator, seen = reader.read(), {}
    for _ in range(2):
        update = next(iterator)
        seen[update.ad_id] = update.bid
    compact(log, [log.end], keep_days=1000, now_us=NOW)
    log.append([Update(ad_id="ad-0", at=0, bid=20.0)])
    position = UpdatePosition(log=log.end.log, seq=2)
    seen |= {update.ad_id: update.bid for update in reader.read(position)}
    assert seen == {"ad-0": 20.0, "ad-1": 7.0, "ad-2": 8.0}


def test_a_reader_in_the_middle_of_the_segments_goes_on_in_the_new_ones(
    log: UpdateLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_log, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(compaction, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(compaction, "_LINES_AT_ONCE", 3)
    for number in range(12):
        log.append([Update(ad_id=f"ad-{number}", at=0, bid=float(number))])
    iterator = UpdateLog(log.directory).read()
    seen = [next(iterator).ad_id for _ in range(2)]
    compact(log, [log.end], keep_days=1000, now_us=NOW)
    assert seen + [update.ad_id for update in iterator] == [f"ad-{number}" for number in range(12)]


def test_a_compaction_that_finds_no_room_leaves_the_log_as_it_was(
    log: UpdateLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([Update(ad_id=f"ad-{number}", at=NOW, bid=1.0) for number in range(20)])
    before = {path.name: path.read_bytes() for path in log.directory.iterdir()}

    def full(self: UpdateLog, *_: object) -> None:
        raise AdsieveError("no space left")

    monkeypatch.setattr(UpdateLog, "write", full)
    with pytest.raises(AdsieveError, match="no space left"):
        compact(log, [log.end], now_us=NOW)
    assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == before


@settings(max_examples=60, deadline=None)
@given(
    said=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["status", "bid", "takedown", "budget"])), max_size=25
    ),
    places=st.lists(st.integers(0, 25), min_size=2, max_size=2),
)
def test_every_reader_ends_with_the_same_states(
    tmp_path_factory: pytest.TempPathFactory, said: list[tuple[str, str]], places: list[int]
) -> None:
    log = UpdateLog(tmp_path_factory.mktemp("log"))
    values = {"status": ["active", "paused"], "bid": [None, 2.0], "takedown": [True, False], "budget": [0.0, None]}
    updates = [
        Update(ad_id=ad_id, at=NOW, **{name: values[name][number % 2]}) for number, (ad_id, name) in enumerate(said)
    ]
    log.append(updates)
    start, end = sorted(min(place, len(updates)) for place in places)
    position = UpdatePosition(log=log.end.log, seq=start) if log.end else None
    reference = _states(updates)
    before = _states(updates[:start])
    compact(log, [UpdatePosition(log=log.end.log, seq=end)] if log.end else [], now_us=NOW)
    assert before | _states(list(log.read(position))) == reference


def _states(updates: list[Update]) -> dict[tuple[str, str], object]:
    states: dict[tuple[str, str], object] = {}
    for update in updates:
        for name, unset in (("status", None), ("bid", UNSET), ("takedown", None), ("budget", UNSET)):
            if getattr(update, name) is not unset:
                states[update.ad_id, name] = getattr(update, name)
    return states


def test_a_log_with_a_damaged_line_is_not_compacted(tmp_path: Path) -> None:
    log = UpdateLog(tmp_path / "updates")
    log.append([Update(ad_id=f"ad-{number}", at=0, takedown=True) for number in range(3)])
    path = next(log.directory.glob("*.jsonl"))
    damaged = path.read_bytes().replace(b"ad-1", b"ad-9")
    path.write_bytes(damaged)
    with pytest.raises(ArtifactError, match=rf"{path.name}: lines 2: 1 damaged lines in all: the log is not compacted"):
        compact(log, [log.end])
    assert path.read_bytes() == damaged
