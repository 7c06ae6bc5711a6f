"""Damaged Parquet is a fault of the log, whatever Arrow makes of it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import LogError
from contracts.parquet import readable, sound_batches
from contracts.records import open_dataset, read_table


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A file whose footer is whole and whose first data page is not."""
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table({"ad_id": [f"ad-{row}" for row in range(5_000)]}), path, compression="zstd")
    content = bytearray(path.read_bytes())
    content[40:400] = bytes(360)
    path.write_bytes(content)
    return path


def test_damage_behind_a_whole_footer_is_named(damaged: Path) -> None:
    with pytest.raises(LogError, match=rf"{damaged}: damaged, expected Parquet"):
        read_table(damaged)
    dataset = open_dataset(damaged)
    with pytest.raises(LogError, match=rf"{damaged}: damaged, .*adsieve validate"):
        list(sound_batches(dataset.to_batches(), source=damaged))


def test_text_that_is_not_utf8_is_named() -> None:
    bytes_of_no_text = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    with pytest.raises(LogError, match="here: damaged"):
        list(sound_batches([pa.record_batch({"ad_id": bytes_of_no_text})], source="here"))


def test_what_is_sound_passes_unchanged() -> None:
    batches = [pa.record_batch({"ad_id": ["a", "ü"]}), pa.record_batch({"ad_id": ["b", None]})]
    assert list(sound_batches(batches, source="here")) == batches


def test_a_file_that_cannot_be_opened_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), readable("here"):
        (tmp_path / "absent").read_bytes()
