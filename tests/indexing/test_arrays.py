"""Arrays that grow on disk equal those that NumPy saves."""

from pathlib import Path

import numpy as np
import pytest

from indexing.arrays import ArrayWriter, map_array


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
