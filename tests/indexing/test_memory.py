"""Memory of the build does not grow with the catalogue."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

JOB = """
import sys
from pathlib import Path
from indexing.config import IndexConfig
from indexing.nightly import build_index
from indexing.peak_memory import peak_memory_bytes

bundles, ads, out = (Path(argument) for argument in sys.argv[1:])
config = IndexConfig(threads=1, engine="onnxruntime_cpu")
build_index(ads=ads, two_tower=bundles / "two_tower", heavy=bundles / "heavy", out=out, config=config)
print(peak_memory_bytes())
"""
PART = 50_000


def peak_mib(bundles: Path, ads: Path, out: Path) -> float:
    command = [sys.executable, "-c", JOB, str(bundles), str(ads), str(out)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 2**20


@pytest.mark.slow
def test_ten_times_the_ads_take_the_same_memory(
    bundles: Path, ads_table: Callable[..., pa.Table], tmp_path: Path
) -> None:
    peaks = {}
    for num_parts in (1, 10):
        ads = tmp_path / f"ads-{num_parts}"
        ads.mkdir()
        for part in range(num_parts):
            ids = [f"ad-{number}" for number in range(part * PART, (part + 1) * PART)]
            pq.write_table(ads_table(PART, part, ad_id=ids), ads / f"{part}.parquet", row_group_size=PART // 2)
        peaks[num_parts] = peak_mib(bundles, ads, tmp_path / f"index-{num_parts}")
    assert peaks[10] < 1.25 * peaks[1], peaks
