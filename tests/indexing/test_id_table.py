"""The id table equals a dict, for ids of any length and alphabet, and says no to everything else."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contracts.errors import ArtifactError, LogError
from indexing import id_buckets, id_keys
from indexing.id_keys import Keys, hashes, stored_keys, text_keys
from indexing.id_table import IdTable, IdTableWriter

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LONG = st.builds(lambda text, times, tail: text * times + tail, TEXT, st.integers(0, 12), TEXT)
NEAR = [
    "",
    "a" * 15,
    "a" * 15 + "\0",
    "a" * 16,
    "a" * 16 + "\0",
    "a" * 17,
    "b" * 17,
    "a" * 15 + "ä",
    "\0",
    "\0\0",
    "a",
    "a\0",
    "a" * 8,
    "a" * 9,
    "a" * 63,
    "a" * 64,
    "a" * 65,
    "a" * 64 + "b",
    "ä" * 32,
    "ä" * 33,
]


def build(ids: list[str]) -> IdTable:
    with tempfile.TemporaryDirectory() as directory:
        return IdTable.build(ids, Path(directory) / "ids")


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXT | LONG | st.sampled_from(NEAR), unique=True, max_size=80), st.lists(TEXT | LONG, max_size=20))
@example(NEAR, [text + "\0" for text in NEAR])
@example([], ["a", ""])
def test_lookup_equals_a_dict(ids: list[str], others: list[str]) -> None:
    table = build(ids)
    rows = {ad_id: row for row, ad_id in enumerate(ids)}
    asked = ids[::-1] + others + ids[:3]
    assert table.lookup(asked).tolist() == [rows.get(ad_id, -1) for ad_id in asked]
    assert table.ids(np.arange(len(ids))) == ids
    assert len(table) == len(ids)
    assert table.texts(0, len(ids)).to_pylist() == ids
    assert table.texts(len(ids) // 2, len(ids)).to_pylist() == ids[len(ids) // 2 :]


def test_many_ids_fill_buckets_and_overflow_into_others() -> None:
    ids = [f"ad-{number}" for number in range(30_000)]
    table = build(ids)
    assert table.lookup(ids).tolist() == list(range(30_000))
    assert (table.lookup([f"ad-{number}" for number in range(30_000, 60_000)]) == -1).all()
    fill = (table._tags != 0).sum(1)
    assert fill.max() == 16
    assert fill.sum() == 30_000


@pytest.mark.parametrize("num_hashes", [1, 3, 2**64])
def test_parts_of_the_hashes_make_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_hashes: int
) -> None:
    def few(keys: Keys) -> np.ndarray:
        return np.array([(int(value) % num_hashes) * (2**64 // num_hashes) for value in true_hashes(keys)], np.uint64)

    true_hashes = id_keys.hashes
    monkeypatch.setattr(id_keys, "hashes", few)
    ids = [f"ad-{number}" for number in range(400)]
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / id_buckets.PARTS).mkdir()
    (tmp_path / "parts" / id_buckets.PARTS / "left").touch()
    IdTable.build(ids, tmp_path / "whole")
    monkeypatch.setattr(id_buckets, "IDS_PER_PART", 7)
    table = IdTable.build(ids, tmp_path / "parts")
    assert table.lookup([*ids, "x"]).tolist() == [*range(400), -1]
    assert sorted(os.listdir(tmp_path / "parts")) == sorted(os.listdir(tmp_path / "whole"))
    if num_hashes > 400:
        for name in ("tags.npy", "rows.npy"):
            assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(st.text("a\0ä", max_size=70), unique=True, max_size=60), st.integers(1, 3))
def test_any_prefixes_and_collisions_equal_a_dict(data: st.DataObject, texts: list[str], num_hashes: int) -> None:
    ids = list(dict.fromkeys(texts + [text[: len(text) // 2] for text in texts]))
    asked = data.draw(st.lists(st.sampled_from([*ids, "\ud800", "a\ud800", ""]) | st.text("a\0ä\ud800", max_size=70)))
    with pytest.MonkeyPatch.context() as monkeypatch:
        true_hashes = id_keys.hashes
        monkeypatch.setattr(id_keys, "hashes", lambda keys: true_hashes(keys) % np.uint64(num_hashes) << np.uint64(44))
        monkeypatch.setattr(id_keys, "_long_hashes", lambda data, starts, lengths: lengths.astype(np.uint64) % 2)
        table = build(ids)
        rows = {ad_id: row for row, ad_id in enumerate(ids)}
        assert table.lookup(asked).tolist() == [rows.get(ad_id, -1) for ad_id in asked]


def test_keys_are_asked_of_several_tables() -> None:
    one, other = build(["a", "b" * 30, "c"]), build(["c", "b" * 30])
    keys = text_keys(["c", "b" * 30, "a", "d"])
    assert one.lookup_keys(keys).tolist() == [2, 1, 0, -1]
    assert other.lookup_keys(keys).tolist() == [0, 1, -1, -1]
    assert other.lookup_keys(keys.take(np.array([3, 1]))).tolist() == [-1, 1]


@pytest.mark.parametrize("kept", [0, 1, 3, 5])
def test_an_interrupted_writer_goes_on(tmp_path: Path, kept: int) -> None:
    ids = ["", "ü", "b" * 100, "c\0", "d"]
    interrupted = IdTableWriter(tmp_path / "ids")
    interrupted.append(pa.array(ids[:kept], pa.string()))
    interrupted.append(pa.array(["lost"] * (kept < 5), pa.string()))
    interrupted.sync()
    writer = IdTableWriter(tmp_path / "ids", resume_rows=kept)
    writer.append(pa.array(ids[kept:], pa.string()))
    writer.finish()
    for name in ("whole", "finished"):
        IdTable.build(ids, tmp_path / name)
    IdTableWriter(tmp_path / "finished", resume_rows=5).finish()
    for name in ("ids.bin", "offsets.npy", "heads.npy", "tags.npy", "rows.npy"):
        whole = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "ids" / name).read_bytes() == whole
        assert (tmp_path / "finished" / name).read_bytes() == whole


def test_a_writer_does_not_go_on_after_ids_that_are_not_there(tmp_path: Path) -> None:
    writer = IdTableWriter(tmp_path / "ids")
    writer.append(pa.array(["a"]))
    writer.sync()
    with pytest.raises(ArtifactError, match="expected at least"):
        IdTableWriter(tmp_path / "ids", resume_rows=2)


@pytest.mark.parametrize("length", [5, 40, 200])
def test_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(id_keys, "hashes", lambda keys: np.full(len(keys), 7 << 40, np.uint64))
    ids = [f"{number:0{length}}" for number in range(60)]
    table = build(ids)
    assert table.lookup(ids).tolist() == list(range(60))
    assert table.lookup([f"{60:0{length}}", "0" * (length - 1)]).tolist() == [-1, -1]


def test_a_lone_surrogate_is_unknown() -> None:
    assert build(["a", "ü"]).lookup(["\ud800", "a", "ü"]).tolist() == [-1, 0, 1]


def test_an_id_is_hashed_alike_whatever_stands_beside_it() -> None:
    alone, beside = text_keys(["ad-1"]), text_keys(["ad-1", "b" * 60, "c" * 100])
    assert hashes(alone)[0] == hashes(beside)[0]
    data = np.frombuffer(b"xxad-1yyyy" + b"z" * 64, np.uint8)
    assert hashes(stored_keys(data, np.array([2]), np.array([4])))[0] == hashes(alone)[0]


def test_hashes_of_similar_ids_differ_and_spread() -> None:
    ids = [f"{a:07}{chr(a % 90 + 33)}{b:07}{chr(b % 90 + 33)}" for a in range(200) for b in range(200)]
    values = hashes(text_keys(ids))
    assert len(np.unique(values)) == len(ids)
    for half in (values >> np.uint64(56), values & np.uint64(255)):
        counts = np.bincount(half.astype(np.int64), minlength=256)
        assert counts.min() > 100
        assert counts.max() < 220


def test_duplicates_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"catalogue: ids must differ, these came twice: \['b'\]"):
        IdTable.build(["a", "b", "c", "b"], tmp_path / "ids", source="catalogue")


def test_slices_and_batches_append_like_one_list(tmp_path: Path) -> None:
    whole = pa.array(["skipped", "a", "", "ü", "b" * 100])
    writer = IdTableWriter(tmp_path / "ids")
    for part in (whole.slice(1, 2), whole.slice(3, 0), whole.slice(3), pa.array([], pa.string())):
        writer.append(part)
    writer.finish()
    table = IdTable.open(tmp_path / "ids")
    assert table.ids(np.arange(4)) == ["a", "", "ü", "b" * 100]
    assert table.lookup(["b" * 100, "ü", "", "skipped"]).tolist() == [3, 2, 1, -1]


def test_rows_out_of_range_are_refused() -> None:
    with pytest.raises(IndexError, match=r"rows must be in 0\.\.1, got -1\.\.0"):
        build(["a", "b"]).ids(np.array([-1, 0]))


def test_other_processes_read_the_same_files(tmp_path: Path) -> None:
    IdTable.build(["a", "ü", "c"], tmp_path / "ids")
    code = (
        "import sys; from pathlib import Path; from indexing.id_table import IdTable;"
        "print(IdTable.open(Path(sys.argv[1])).lookup(['ü', 'x']).tolist())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "ids")], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[1, -1]"


@pytest.mark.parametrize("name", ["ids.bin", "offsets.npy", "heads.npy", "tags.npy", "rows.npy"])
def test_truncated_files_are_refused(tmp_path: Path, name: str) -> None:
    IdTable.build(["a", "b"], tmp_path / "ids")
    path = tmp_path / "ids" / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match="id table"):
        IdTable.open(tmp_path / "ids")
    path.unlink()
    with pytest.raises(ArtifactError, match="not an id table"):
        IdTable.open(tmp_path / "ids")
