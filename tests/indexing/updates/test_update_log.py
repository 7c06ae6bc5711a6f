"""The log of updates: whole appends, positions, damage, and several writers at once."""

import json
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from contracts.errors import AdsieveError, ArtifactError, InputError
from contracts.release import UpdatePosition
from indexing import update_log, update_segment
from indexing.update_log import UpdateLog
from indexing.update_record import Content, Update, decode_update, encode_update
from indexing.update_scan import SegmentScan
from indexing.update_segment import encode_batch, encode_pieces, read_line


def numbered(count: int, first: int = 0) -> list[Update]:
    return [Update(ad_id=f"ad-{number}-ü", at=number, bid=number / 3) for number in range(first, first + count)]


def nested(depth: int) -> object:
    """A number in lists and objects by turns."""
    value: object = 1
    for number in range(depth):
        value = [value, 2] if number % 2 else {"a": value}
    return value


def ids(log: UpdateLog, after: UpdatePosition | None = None) -> list[str]:
    return [update.ad_id for update in log.read(after)]


def segments(log: UpdateLog) -> list[Path]:
    return sorted(log.directory.glob("*.jsonl"))


@pytest.fixture
def log(tmp_path: Path) -> UpdateLog:
    return UpdateLog(tmp_path / "updates")


def test_a_log_before_its_first_append_is_empty(log: UpdateLog) -> None:
    assert log.end is None
    assert ids(log) == []
    assert log.covers(None)
    assert not log.directory.exists()


def test_updates_come_back_in_order_with_numbers_from_one(log: UpdateLog) -> None:
    content = Content(scenario="s", valid_from=5, features={"a": [1, None], "b": "ü", "c": None, "d": 0.1})
    first = log.append([Update(ad_id="a", at=1, bid=None, content=content), *numbered(3)])
    assert log.append([]) == first
    second = log.append(numbered(2, 3))
    assert (first.seq, second.seq, first.log) == (4, 6, second.log)
    other = UpdateLog(log.directory)
    read = list(other.read())
    assert [update.seq for update in read] == [1, 2, 3, 4, 5, 6]
    assert read[0].content == content
    assert other.end == second
    assert ids(other, first) == ["ad-3-ü", "ad-4-ü"]
    assert ids(other, second) == []
    assert len(ids(other, UpdatePosition(log="another", seq=5))) == 6


def test_a_record_reads_as_it_was_written_and_keeps_what_is_unset_apart_from_none() -> None:
    for update in (Update(ad_id="a", at=1, bid=None), Update(ad_id="a", at=1, budget=0.0), Update(ad_id="", at=-1)):
        assert decode_update(encode_update(update)) == update


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (Update(ad_id="a", at=0, bid=-1.0), "bid: expected a finite number of at least 0, or null, got -1.0"),
        (Update(ad_id="a", at=0, bid=float("nan")), "bid: expected a finite number"),
        (Update(ad_id="a", at=0, budget=float("inf")), "budget: expected a finite number or null, got inf"),
        (Update(ad_id="a", at=0, status="asleep"), "status: expected one of active, paused, removed, got 'asleep'"),
        (Update(ad_id="\ud800", at=0, bid=1.0), "ad_id: expected valid Unicode"),
        (
            Update(ad_id="a", at=0, content=Content(scenario="s", valid_from=0, features={"x": nested(9)})),
            "content.features.x: expected at most 8 lists or objects in another",
        ),
        (Update(ad_id="a", at=0), "expected at least one of status, bid"),
    ],
)
def test_a_value_that_no_reader_could_use_refuses_the_whole_append(
    log: UpdateLog, update: Update, message: str
) -> None:
    with pytest.raises(InputError, match=r"updates\[2\]: " + message.replace("(", r"\(")):
        log.append([*numbered(2), update])
    assert log.end is None


def test_segments_roll_and_a_reader_goes_on_across_them(log: UpdateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_log, "SEGMENT_BYTES", 200)
    reader, position = UpdateLog(log.directory), None
    seen = []
    for number in range(12):
        log.append(numbered(2, 2 * number))
        seen += ids(reader, position)
        position = reader.end
    assert len(segments(log)) > 3
    assert seen == ids(UpdateLog(log.directory)) == [f"ad-{number}-ü" for number in range(24)]
    assert ids(UpdateLog(log.directory), UpdatePosition(log=position.log, seq=17)) == seen[17:]


@settings(max_examples=80, deadline=None)
@given(cut=st.integers(1, 10_000))
def test_an_append_that_was_cut_off_anywhere_is_not_there_and_the_next_one_goes_on(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    log = UpdateLog(tmp_path_factory.mktemp("log"))
    log.append(numbered(2))
    whole = segments(log)[0].stat().st_size
    log.append(numbered(3, 2))
    size = segments(log)[0].stat().st_size
    os.truncate(segments(log)[0], max(whole, size - 1 - cut % (size - whole)))
    is_whole = cut % (size - whole) == 0  # only the last line's end is missing
    kept = [f"ad-{number}-ü" for number in range(5 if is_whole else 2)]
    fresh = UpdateLog(log.directory)
    assert ids(fresh) == kept
    assert fresh.end.seq == len(kept)
    assert fresh.append(numbered(1, 7)).seq == 6, "3 to 5 may have been acknowledged"
    assert ids(UpdateLog(log.directory)) == ids(log) == [*kept, "ad-7-ü"]


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_loses_the_lines_it_touches_and_no_others(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    updates = [Update(seq=number, ad_id=f"ad-{number}", at=number, bid=1.0) for number in range(1, 9)]
    data = bytearray(b"".join(encode_batch(updates[start : start + 2]) for start in range(0, 8, 2)))
    data[at % len(data)] ^= 1 << bit
    path = tmp_path_factory.mktemp("log") / "segment"
    path.write_bytes(data)
    scanned = SegmentScan(path)
    read = [update for lot in scanned for update in lot]
    lost = {update.seq for update in updates} - {update.seq for update in read}
    assert all(update in updates for update in read)
    assert len(lost) <= 2
    assert len(scanned.damaged) <= max(1, len(lost))


def test_a_damaged_line_is_skipped_loudly_and_its_number_is_not_given_again(
    log: UpdateLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.append(numbered(2))
    log.append(numbered(1, 2))
    path = segments(log)[0]
    data = path.read_bytes()
    path.write_bytes(data.replace(b"ad-2", b"ad-9"))
    fresh = UpdateLog(log.directory)
    assert ids(fresh) == ["ad-0-ü", "ad-1-ü"]
    assert fresh.damaged == 1
    assert "1 damaged lines are skipped" in caplog.text
    assert fresh.append(numbered(1, 5)).seq == 4


@pytest.mark.parametrize("end", [b"", b"K", b"K\n"])
def test_a_last_line_whose_end_is_damaged_is_whole(log: UpdateLog, end: bytes) -> None:
    log.append(numbered(1))
    log.append([Update(ad_id="down", at=0, takedown=True)])
    path = segments(log)[0]
    path.write_bytes(path.read_bytes()[:-1] + end)
    follower = UpdateLog(log.directory)
    assert [update.takedown for update in follower.read()] == [None, True]
    assert UpdateLog(log.directory).append(numbered(1, 7)).seq == 3
    assert ids(follower, UpdatePosition(log=log.end.log, seq=2)) == ["ad-7-ü"]
    again = UpdateLog(log.directory)
    assert ids(again) == ["ad-0-ü", "down", "ad-7-ü"]
    assert again.damaged == 0


@pytest.mark.parametrize("keeps_notes", [True, False])
@pytest.mark.parametrize("left", [0, 1, 130])
def test_what_is_cut_off_a_segment_does_not_free_its_numbers(log: UpdateLog, left: int, keeps_notes: bool) -> None:
    reader = UpdateLog(log.directory)
    for number in range(5):
        log.append(numbered(1, number))
    position = reader.end
    assert len(ids(reader)) == position.seq == 5
    os.truncate(segments(log)[0], left)
    if not keeps_notes:
        (log.directory / "given").unlink()
    appended = log.append(numbered(1, 9))
    assert appended.seq == (6 if keeps_notes else update_log.LEAP + 1)
    assert ids(UpdateLog(log.directory), position) == ids(reader, position) == ["ad-9-ü"]
    assert UpdateLog(log.directory).append(numbered(1, 3)).seq == appended.seq + 1


def test_a_damaged_manifest_is_an_error_until_the_next_append_builds_it_again(
    log: UpdateLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_log, "SEGMENT_BYTES", 100)
    for number in range(4):
        log.append(numbered(1, number))
    manifest, before = log.directory / "log.json", log.manifest()
    segment = before.segments[0]
    for broken in (
        b"{",
        b"\xff",
        b"[" * 100_000,
        msgspec.json.encode(replace(before, segments=[])),
        msgspec.json.encode(replace(before, segments=[replace(segment, name="../log.json")])),
        msgspec.json.encode(replace(before, segments=list(reversed(before.segments)))),
    ):
        manifest.write_bytes(broken)
        for use in (lambda: list(UpdateLog(log.directory).read()), lambda: UpdateLog(log.directory).end):
            with pytest.raises(ArtifactError, match=r"log\.json: not the manifest of an update log.*restore"):
                use()
        end = UpdateLog(log.directory).append([])
        assert "it was built again from its" in caplog.text
        assert (end.log, log.manifest()) == (before.log, before)
    manifest.unlink()
    with pytest.raises(ArtifactError, match=r"log\.json: missing, but there are segments"):
        list(log.read())
    assert UpdateLog(log.directory).append(numbered(1, 4)).seq == 5
    assert ids(log) == [f"ad-{number}-ü" for number in range(5)]
    manifest.write_bytes(b"{")
    (log.directory / "given").unlink()
    with pytest.raises(ArtifactError, match=r"log\.json: not the manifest"):
        UpdateLog(log.directory).append(numbered(1))


def test_pieces_of_an_append_are_one_batch(log: UpdateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_segment, "_PIECE", 3)
    for count in range(1, 9):
        updates = [replace(update, seq=place) for place, update in enumerate(numbered(count), 1)]
        pieces = list(encode_pieces(iter(updates)))
        assert len(pieces) == -(-count // 3)
        assert [read_line(line) for line in b"".join(pieces).splitlines()] == updates
    log.append(numbered(2))

    def failing() -> Iterator[bytes]:
        yield encode_batch(numbered(1))
        raise RuntimeError("no more")

    before = segments(log)[0].read_bytes()
    with pytest.raises(RuntimeError, match="no more"):
        log.write_pieces(log.manifest().segments[0], len(before), failing())  # type: ignore[union-attr]
    assert segments(log)[0].read_bytes() == before


def test_a_manifest_that_was_altered_is_an_error_though_a_log_could_have_it(log: UpdateLog) -> None:
    log.append(numbered(2))
    path, before = log.directory / "log.json", log.manifest()
    stored = json.loads(path.read_bytes())
    for altered in (stored | {"floor": 1}, stored | {"log": "0" * 16}, stored | {"crc": stored["crc"] ^ 1}):
        path.write_text(json.dumps(altered))
        with pytest.raises(ArtifactError, match=r"log\.json: not the manifest of an update log: wrong checksum"):
            UpdateLog(log.directory).manifest()
    del stored["crc"]  # as earlier versions wrote it
    path.write_text(json.dumps(stored))
    assert UpdateLog(log.directory).manifest() == before


def test_a_manifest_is_not_built_of_two_sets_of_segments(log: UpdateLog) -> None:
    log.append(numbered(3))
    stray = log.new_segment(2)
    log.write(stray, 0, segments(log)[0].read_bytes())
    (log.directory / "log.json").write_bytes(b"{")
    with pytest.raises(ArtifactError, match=r"log\.json: not the manifest"):
        log.append(numbered(1))
    assert len(segments(log)) == 2


def test_a_missing_segment_is_an_error_that_names_it(log: UpdateLog) -> None:
    log.append(numbered(3))
    segments(log)[0].unlink()
    for use in (lambda: list(log.read()), lambda: log.end, lambda: log.append(numbered(1))):
        with pytest.raises(ArtifactError, match=r"\.jsonl: a segment that log\.json names is missing; restore"):
            use()


def test_a_kill_before_the_first_manifest_leaves_a_log_that_can_begin(log: UpdateLog) -> None:
    log.directory.mkdir()
    log.new_segment(1)
    assert log.end is None
    assert log.append(numbered(1)).seq == 1
    assert len(segments(log)) == 1


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """What a full disk does to a write: a part of it, then an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_takes_nothing_of_an_append(log: UpdateLog) -> None:
    log.append(numbered(2))
    before = segments(log)[0].read_bytes()
    with file_size_limit(len(before) + 100), pytest.raises(AdsieveError, match="cannot be written, no update was take"):
        log.append(numbered(50))
    assert segments(log)[0].read_bytes() == before
    assert log.append(numbered(1)).seq == 53, "a reader may have seen what was then taken back"


def test_several_processes_append_whole_batches_without_a_gap(log: UpdateLog) -> None:
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from indexing.update_log import UpdateLog
        from indexing.update_record import Update
        log = UpdateLog(Path(sys.argv[1]))
        for number in range(20):
            log.append([Update(ad_id=f"{sys.argv[2]}-{number}-{place}", at=0, bid=1.0) for place in range(5)])
    """)
    arguments = [sys.executable, "-c", program, str(log.directory)]
    running = [subprocess.Popen([*arguments, name], cwd=Path(__file__).parents[3]) for name in "abc"]
    assert [process.wait() for process in running] == [0, 0, 0]
    updates = list(log.read())
    assert [update.seq for update in updates] == list(range(1, 301))
    names = [update.ad_id for update in updates]
    for start in range(0, 300, 5):
        process, number, _ = names[start].split("-")
        assert names[start : start + 5] == [f"{process}-{number}-{place}" for place in range(5)]


def test_a_mirror_holds_the_same_updates_under_the_same_numbers(log: UpdateLog, tmp_path: Path) -> None:
    log.append(numbered(5))
    mirror = UpdateLog(tmp_path / "mirror")
    all_updates = list(log.read())
    mirror.append_mirrored(all_updates[:3], log=log.end.log)
    mirror.append_mirrored(all_updates[1:], log=log.end.log)
    assert list(mirror.read()) == all_updates
    assert mirror.end == log.end
    gap = [Update(seq=9, ad_id="late", at=0, bid=1.0)]
    assert mirror.append_mirrored(gap, log=log.end.log, floor=8).seq == 9
    assert not mirror.covers(log.end)
    begun_anew = mirror.append_mirrored([Update(seq=1, ad_id="new", at=0, bid=1.0)], log="another")
    assert begun_anew == UpdatePosition(log="another", seq=1)
    assert ids(mirror) == ["new"]


def test_the_files_are_lines_that_people_can_read(log: UpdateLog) -> None:
    log.append([Update(ad_id="ad-1", at=7, takedown=True)])
    line = segments(log)[0].read_text()
    assert json.loads(line[11:]) == {"seq": 1, "ad_id": "ad-1", "at": 7, "takedown": True}


def test_an_update_that_is_nested_beyond_reading_is_a_damaged_line_to_its_readers(log: UpdateLog) -> None:
    log.append(numbered(1))
    deep = b'. {"seq":2,"ad_id":"deep","at":0,"content":{"scenario":"s","valid_from":0,"features":{"x":%s}}}'
    body = deep % (b"[" * 5_000 + b"]" * 5_000)  # as another program may write it
    with open(segments(log)[0], "ab") as file:
        file.write(b"%08x %s\n" % (crc32(body), body))
    fresh = UpdateLog(log.directory)
    assert ids(fresh) == ["ad-0-\u00fc"]
    assert fresh.damaged == 1
    assert fresh.append(numbered(1, 2)).seq == 3
    whole = Content(scenario="s", valid_from=0, features={"x": nested(8)})
    log.append([Update(ad_id="most", at=0, content=whole)])
    assert list(UpdateLog(log.directory).read())[-1].content == whole
