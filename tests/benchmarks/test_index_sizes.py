"""The benchmark of sizes runs from its bundle to its last figure, and its parts add up to the whole."""

from pathlib import Path

import pytest

from benchmarks.index_build_setup import make_model, seal
from benchmarks.index_sizes import measure


@pytest.mark.slow
def test_the_blocks_of_an_index_are_all_of_its_bytes(tmp_path: Path) -> None:
    bundle = seal(make_model(), tmp_path / "bundle").path
    figures = measure(bundle, tmp_path / "small", 2_000)
    blocks = sorted(path.name for path in (tmp_path / "small" / "index").iterdir())
    told = [figures[f"2,000 ads: {name}, bytes an ad"] for name in blocks]
    assert sum(told) == pytest.approx(figures["2,000 ads: index, bytes an ad"])
    assert all(value > 0 for value in figures.values())
