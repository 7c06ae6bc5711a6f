"""Arrays that grow on disk equal those that NumPy saves."""

from pathlib import Path

import numpy as np
import psutil
import pytest

from contracts.errors import ArtifactError
from indexing.arrays import ArrayWriter, map_array, release_pages


@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_appended_rows_equal_the_whole(tmp_path: Path, shape: tuple[int, ...], dtype: type) -> None:
    whole = np.random.default_rng(0).integers(0, 100, (7, *shape))
    with ArrayWriter(tmp_path / "x.npy", dtype, shape) as writer:
        for part in (whole[:4], whole[4:4], whole[4:]):
            writer.append(part)
    mapped = map_array(tmp_path / "x.npy")
    assert mapped.dtype == dtype
    np.testing.assert_array_equal(mapped, whole.astype(dtype))
    assert not mapped.flags.writeable


def test_an_empty_array_opens(tmp_path: Path) -> None:
    ArrayWriter(tmp_path / "x.npy", np.float32, (4,)).close()
    assert map_array(tmp_path / "x.npy").shape == (0, 4)


def test_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    with (
        ArrayWriter(tmp_path / "x.npy", np.float32, (4,)) as writer,
        pytest.raises(ValueError, match=r"rows of shape \(4,\) are expected, got \(3,\)"),
    ):
        writer.append(np.zeros((2, 3)))


@pytest.mark.parametrize("shape", [(), (3,)])
def test_an_interrupted_array_goes_on_after_the_rows_that_are_kept(tmp_path: Path, shape: tuple[int, ...]) -> None:
    whole = np.random.default_rng(0).normal(size=(9, *shape)).astype(np.float32)
    with ArrayWriter(tmp_path / "unbroken.npy", np.float32, shape) as unbroken:
        unbroken.append(whole)
    path = tmp_path / "x.npy"
    dead = ArrayWriter(path, np.float32, shape)
    dead.append(whole[:4])
    dead.sync()
    dead.append(np.zeros((2, *shape)))
    dead._file.flush()  # rows that no checkpoint knows of
    with ArrayWriter(path, np.float32, shape, resume_rows=4) as writer:
        writer.append(whole[4:])
    assert path.read_bytes() == (tmp_path / "unbroken.npy").read_bytes()
    with ArrayWriter(path, np.float32, shape) as anew:
        anew.append(whole)
    assert path.read_bytes() == (tmp_path / "unbroken.npy").read_bytes()


def test_rows_that_are_not_there_cannot_be_kept(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path / "x.npy", np.float32, (4,)) as writer:
        writer.append(np.zeros((2, 4)))
    with pytest.raises(ArtifactError, match=r"x\.npy: 160 bytes, expected at least 176 to go on after"):
        ArrayWriter(tmp_path / "x.npy", np.float32, (4,), resume_rows=3)
    with pytest.raises(ArtifactError, match=r"y\.npy: 0 bytes"):
        ArrayWriter(tmp_path / "y.npy", np.float32, (4,), resume_rows=3)


def test_pages_that_were_read_are_given_back(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((32, 1 << 20), np.uint8))
    mapped = map_array(tmp_path / "x.npy")
    before = psutil.Process().memory_info().shared
    assert mapped.sum(dtype=np.int64) == 32 << 20
    read = psutil.Process().memory_info().shared
    release_pages(mapped[3:], None, np.zeros(3))
    assert read - before > 24 << 20
    assert psutil.Process().memory_info().shared - before < 8 << 20
    assert mapped[31].sum(dtype=np.int64) == 1 << 20


def test_a_damaged_header_is_told_as_such_whatever_numpy_makes_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with ArrayWriter(path, np.float32, (3,)) as writer:
        writer.append(np.zeros((5, 3), np.float32))
    sound = path.read_bytes()
    refused = 0
    for content in [sound[:size] for size in range(len(sound))] + [
        sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :] for at in range(128) for bit in range(8)
    ]:
        path.write_bytes(content)
        try:
            map_array(path)
        except ValueError:
            refused += 1
    assert refused > len(sound) + 900
