"""A pass over a segment equals a plain one that holds all of it, whatever was cut off, damaged or put in between."""

from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import ArtifactError
from indexing import update_scan
from indexing.update_record import Content, Update
from indexing.update_scan import SegmentScan
from indexing.update_segment import encode_batch, lost_seq, read_line


def plain(data: bytes, seq: int) -> tuple[list[Update], int, int, list[int]]:
    """The reference: updates of whole batches, their bytes, the number of the last line, damaged lines."""
    updates, damaged, whole, at, size = list[Update](), list[int](), ([], 0, seq, []), 0, 0
    *lines, rest = data.split(b"\n")
    ends = [len(line) + 1 for line in lines] + [len(rest)]
    if read_line(rest) is None:
        del ends[-1]
    for number, (line, length) in enumerate(zip([*lines, rest], ends, strict=False), 1):
        at += length
        if not line:
            if size == at - 1:
                size = at
                whole = whole[0], size, *whole[2:]
            continue
        update = read_line(line)
        if update is None:
            damaged.append(number)
            seq = lost_seq(line, seq)
        else:
            updates.append(update)
            seq = update.seq
        if update is None or line[9:10] == b".":
            size = at
            whole = list(updates), size, seq, list(damaged)
    return whole


def passed(path: Path, offset: int, seq: int) -> tuple[list[Update], int, int, list[int]]:
    scanned = SegmentScan(path, offset, seq)
    updates = [update for lot in scanned for update in lot]
    return updates, scanned.size, scanned.seq, scanned.damaged


def batches(sizes: list[int]) -> list[bytes]:
    made, seq = [], 0
    for size in sizes:
        content = Content(scenario="s", valid_from=seq, features={"name": "ü" * (seq % 5)}) if seq % 3 else None
        updates = [Update(seq=seq + n, ad_id=f"a{n}", at=n, bid=1.0, content=content) for n in range(1, size + 1)]
        made.append(encode_batch(updates))
        seq += size
    return made


EDITS = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "newline", "lose", "foreign"]), st.integers(0, 10_000)), max_size=3
)


def edited(data: bytes, edits: list[tuple[str, int]]) -> bytes:
    for edit, number in edits:
        at = number % (len(data) + 1)
        match edit:
            case "flip" if data:
                at = number % len(data)
                data = data[:at] + bytes([data[at] ^ 1 << number % 8]) + data[at + 1 :]
            case "cut":
                data = data[:at]
            case "newline":
                data = data[:at] + b"\n" + data[at:]
            case "lose":
                data = data[:at] + data[at + number % 90 :]
            case "foreign":
                body = [b'. {"seq":1}', b"+ {},{}", b". [", b'. {"ad_id":"a","at":0},{"ad_id":"b","at":0}'][number % 4]
                at = data.find(b"\n", at) + 1
                data = data[:at] + b"%08x %s\n" % (crc32(body), body) + data[at:]
    return data


@settings(max_examples=300, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), max_size=6), edits=EDITS, stretch=st.integers(1, 300), skipped=st.integers(0, 2)
)
def test_a_pass_in_stretches_equals_a_plain_one(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], edits: list[tuple[str, int]], stretch: int, skipped: int
) -> None:
    made = batches(sizes)
    head, seq = b"".join(made[:skipped]), sum(sizes[:skipped])
    data = edited(b"".join(made[skipped:]), edits)
    path = tmp_path_factory.mktemp("scan") / "segment"
    path.write_bytes(head + data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_scan, "STRETCH", stretch)
        assert passed(path, len(head), seq) == plain(data, seq)


def test_a_long_batch_comes_in_lots_and_without_its_last_line_not_at_all(tmp_path: Path) -> None:
    (batch,) = batches([20_000])
    path = tmp_path / "segment"
    path.write_bytes(batch)
    lots = list(SegmentScan(path))
    assert max(map(len, lots)) < 6_000
    assert [update.seq for lot in lots for update in lot] == list(range(1, 20_001))
    path.write_bytes(batch[: batch.rindex(b"\n", 0, -1) + 1])
    assert passed(path, 0, 0) == ([], 0, 0, [])


def test_a_segment_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="segment"):
        SegmentScan(tmp_path / "segment").finish()
    with pytest.raises(ArtifactError, match="cannot be read: Is a directory"):
        SegmentScan(tmp_path).finish()
