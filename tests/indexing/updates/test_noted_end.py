"""The note of where the log ends: an append reads nothing else, and a note that is not true is not believed."""

import os
from pathlib import Path

import msgspec
import pytest

from contracts.errors import AdsieveError
from indexing import update_log
from indexing.update_given import GIVEN, Given, note_given, read_given, trusted_end
from indexing.update_log import UpdateLog
from indexing.update_record import Update

PER_APPEND = 20_000


@pytest.fixture
def log(tmp_path: Path) -> UpdateLog:
    return UpdateLog(tmp_path / "updates")


def lot(count: int, first: int = 0) -> list[Update]:
    return [Update(ad_id=f"ad-{number}", at=number, bid=1.0) for number in range(first, first + count)]


def segment(log: UpdateLog) -> Path:
    return max(log.directory.glob("*.jsonl"))


def bytes_read() -> int:
    """What this process has read so far, from files and from caches."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes as Linux does")
def test_an_append_to_a_long_log_reads_little_of_it(log: UpdateLog) -> None:
    log.append(lot(PER_APPEND))
    assert segment(log).stat().st_size > 1_000_000
    for number in range(1, 4):
        before = bytes_read()
        assert UpdateLog(log.directory).append(lot(1)).seq == PER_APPEND + number
        assert bytes_read() - before < 20_000
    assert sum(1 for _ in log.read()) == PER_APPEND + 3


def test_what_a_writer_appended_after_its_last_note_is_found(log: UpdateLog) -> None:
    """As after a kill between an append and its note."""
    log.append(lot(3))
    note = (log.directory / GIVEN).read_bytes()
    log.append(lot(2, first=3))
    (log.directory / GIVEN).write_bytes(note)
    assert UpdateLog(log.directory).end.seq == 5
    assert UpdateLog(log.directory).append(lot(1, first=5)).seq == 6
    assert [update.ad_id for update in UpdateLog(log.directory).read()] == [f"ad-{number}" for number in range(6)]


def test_a_note_counts_only_for_its_own_segment_as_it_was(log: UpdateLog) -> None:
    position = log.append(lot(30))
    path = segment(log)
    whole = path.read_bytes()
    assert trusted_end(log.directory, position.log, path.name).seq == 30
    assert trusted_end(log.directory, "another", path.name) is None
    assert trusted_end(log.directory, position.log, "0000000000000001-00000000.jsonl") is None
    for altered in (whole[:-1], whole[:-20] + b"?" + whole[-19:], b""):
        path.write_bytes(altered)
        assert trusted_end(log.directory, position.log, path.name) is None
    path.write_bytes(b"?" + whole[1:])
    assert trusted_end(log.directory, position.log, path.name).seq == 30, "a line before it does not move the end"
    assert UpdateLog(log.directory).append(lot(1, first=30)).seq == 31


def test_a_note_that_is_torn_is_none(log: UpdateLog) -> None:
    log.append(lot(2))
    path = log.directory / GIVEN
    whole = path.read_bytes()
    for torn in (b"", whole[:50], whole.replace(b'"seq":2', b'"seq":7', 1), b"{}"):
        path.write_bytes(torn)
        assert read_given(log.directory) is None
        assert UpdateLog(log.directory).end.seq == 2
    os.remove(path)
    assert UpdateLog(log.directory).append(lot(1)).seq == 3


def test_a_note_outlives_a_segment_that_was_begun(log: UpdateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_log, "SEGMENT_BYTES", 100)
    for number in range(6):
        assert UpdateLog(log.directory).append(lot(2, first=2 * number)).seq == 2 * number + 2
        end = read_given(log.directory).end.place
        assert (end.segment, end.seq) == (segment(log).name, 2 * number + 2)


def test_an_append_that_is_on_disk_counts_though_its_note_cannot_be_written(
    log: UpdateLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(lot(1))
    written = []

    def full(directory: Path, given: Given) -> None:
        if written:
            raise AdsieveError("no space left on device")
        written.append(msgspec.json.encode(given))
        note_given(directory, given)

    monkeypatch.setattr(update_log, "note_given", full)
    assert log.append(lot(1, first=1)).seq == 2
    monkeypatch.undo()
    assert UpdateLog(log.directory).append(lot(1, first=2)).seq == 3
    assert [update.seq for update in UpdateLog(log.directory).read()] == [1, 2, 3]
