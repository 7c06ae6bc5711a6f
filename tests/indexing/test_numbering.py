"""Numbers of texts equal those of a plain dictionary, however few of the texts are in memory."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from indexing import numbering
from indexing.id_table import IdTable
from indexing.numbering import Numbering


def batches(count: int) -> list[list[str | None]]:
    rng = np.random.default_rng(0)
    return [
        [None if code == 0 else f"tëxt {code}" for code in rng.integers(0, 40 * (batch + 1), 25).tolist()]
        for batch in range(count)
    ]


def numbered(numbers: Numbering, parts: list[list[str | None]]) -> list[int]:
    return [number for part in parts for number in numbers(pa.array(part, pa.string())).tolist()]


@pytest.mark.parametrize("recent", [1, 7, 10_000])
@pytest.mark.parametrize("interrupted", [0, 1, 5, 12])
def test_numbers_follow_the_first_appearance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recent: int, interrupted: int
) -> None:
    monkeypatch.setattr(numbering, "RECENT", recent)
    parts, known = batches(12), {}
    expected = [-1 if text is None else known.setdefault(text, len(known)) for part in parts for text in part]
    first = Numbering(tmp_path / "texts", tmp_path / "scratch")
    found = numbered(first, parts[:interrupted])
    first.sync()
    kept = first.num_texts
    numbered(first, [["lost"]])  # after the last sync, so forgotten
    second = Numbering(tmp_path / "texts", tmp_path / "scratch", resume_rows=kept)
    found += numbered(second, parts[interrupted:])
    second.finish()
    assert found == expected
    table = IdTable.open(tmp_path / "texts")
    assert table.ids(np.arange(len(table))) == list(known)
