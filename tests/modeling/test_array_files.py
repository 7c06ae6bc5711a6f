"""Arrays that grow on disk."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from modeling.array_files import ArrayWriter, read_array, read_texts, write_texts


@pytest.mark.parametrize("shape", [(), (3,), (0,)])
def test_pieces_come_back_as_one_array(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pieces = [np.full((rows, *shape), rows, np.int32) for rows in (0, 2, 5, 0, 70_000)]
    with ArrayWriter(tmp_path) as writer:
        for piece in pieces:
            writer.append("a", piece)
    np.testing.assert_array_equal(read_array(tmp_path, "a"), np.concatenate(pieces))
    assert read_array(tmp_path, "a").flags.writeable is False


def test_an_array_of_no_rows_can_be_read(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path) as writer:
        writer.append("a", np.zeros((0, 4), np.float32))
    assert read_array(tmp_path, "a").shape == (0, 4)


def test_texts_come_back(tmp_path: Path) -> None:
    texts = pa.array(["a", "日本", ""])
    write_texts(tmp_path, "id", texts)
    assert read_texts(tmp_path, "id").to_pylist() == texts.to_pylist()
