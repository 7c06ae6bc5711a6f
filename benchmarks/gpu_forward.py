"""The heavy ranker's two stages on a CUDA device beside the CPU, in interleaved blocks of one run. Random weights.

Not yet run on a GPU.
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from benchmarks.harness import finish, parser
from contracts.config import convert
from contracts.layout import side_layout
from contracts.schema import FeatureSchema
from heavy_ranker.build import build_ranker
from heavy_ranker.presets import small
from heavy_ranker.rows import EvenRows

BLOCKS, CALLS = 6, 20
ADS, LENGTH = 100, 50


def main() -> int:
    """Median milliseconds of one request with 100 ads on each device, and their ratio."""
    options = parser(__doc__).parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.gpu_forward needs a CUDA device; torch.cuda.is_available() is False", file=sys.stderr)
        return 1
    runs = {device: _request(device) for device in ("cpu", "cuda")}
    times: dict[str, list[float]] = {device: [] for device in runs}
    for _ in range(BLOCKS):
        for device, run in runs.items():
            times[device] += _timed(run)
    medians = {device: median(found) for device, found in times.items()}
    figures = {
        "device": torch.cuda.get_device_name(0),
        "schedule": f"{BLOCKS} interleaved blocks of {CALLS} calls",
        **{f"{device}, ms": value for device, value in medians.items()},
        "cpu to cuda": medians["cpu"] / medians["cuda"],
    }
    return finish(options, figures, [])


def _request(device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    schema = _schema()
    ranker = build_ranker(schema, small().model).eval().to(device)
    flat = torch.randn(1, side_layout(schema, "query").flat_dim(pool_sequences=False), device=device)
    events, mask = torch.randn(1, LENGTH, 16, device=device), torch.ones(1, LENGTH, device=device)
    ads = torch.randn(ADS, side_layout(schema, "ad").flat_dim(pool_sequences=False), device=device)

    @torch.inference_mode()
    def run() -> None:
        ranker.score_ads(ranker.encode_request(flat, {"clicks": (events, mask)}), EvenRows(1, ADS), ads).cpu()

    return run


def _timed(run: Callable[[], None]) -> list[float]:
    found = []
    for _ in range(CALLS):
        start = time.perf_counter()
        run()
        found.append(1000 * (time.perf_counter() - start))
    return found


def _schema() -> FeatureSchema:
    fields = {"ad_id": {"kind": "categorical", "table": "ad"}}
    features = {
        "user_ctr": {"side": "query", "kind": "dense", "default": 0.1},
        "clicks": {"side": "query", "kind": "sequence", "max_length": LENGTH, "fields": fields},
        "ad_id": {"side": "ad", "kind": "categorical", "table": "ad"},
    }
    data = {"tasks": ["click"], "objectives": {"click": "click"}, "features": features}
    return convert({**data, "tables": {"ad": {"dim": 16, "buckets": 64}}}, FeatureSchema, source="benchmark")


if __name__ == "__main__":
    sys.exit(main())
