"""The nightly index, built end to end, against its pin tower alone, and the pin tower against what the machine can do.

A tower of 12.1 MFLOPs an ad and a catalogue of 40 features (``benchmarks.index_build_setup``). End to end is what
``adsieve index build --two-tower A --heavy B`` does, in a process of its own, from opening the bundles to the finished
index: engine choice, planning, reading, encoding for both models, look-ups, tower, writing, id table, retrieval,
checksums. The heavy ranker has the tower's features; of it a build encodes and writes all 40 once more. The same
without ``--heavy`` is told beside it. Blocks alternate: tower, eager and matrix products, then the builds, in
``ROUNDS`` rounds; figures are medians. The first build compares the engines and remembers the fastest, as the first
one of a machine does; those after it, the large ones among them, take what is remembered.

- Tower alone: each engine on flat inputs in memory, on as many threads as the build has, at its best batch size.
- Eager: the trained module in fp32 as it runs, its experts one after another, at its best batch size.
- Limit: the BF16 product of 1024 x 1024 x 1024, the better one of torch and OpenVINO. How many times eager it is, no
  tower can be.
- Memory: the peak of the build's process for 100,000 ads and for ten times as many, with ``--heavy``, of its own
  pages; resident pages of mapped files, which the system may drop at any time, are told beside it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.harness import Target, finish, parser
from benchmarks.heavy_serving_setup import GEMM_FLOPS, bf16_products
from benchmarks.index_build_setup import make_model, seal, seal_heavy, write_ads
from contracts.bundle import Bundle
from engines.names import ENGINES, GPU_ENGINES
from engines.openvino_cpu import has_bf16
from engines.protocol import Engine
from indexing.pin_engine import open_pin_engine
from towers.two_tower import TwoTower

THREADS = 2
ADS = {"small": 100_000, "large": 1_000_000}
ALONE = "large without heavy"
"""The build of the large catalogue for the two-tower bundle alone."""
ROUNDS = 3
TOWER_ROWS, TOWER_BATCHES = 32_768, (256, 512, 1024, 2048)
EAGER_ROWS, EAGER_BATCHES = 8_192, (256, 1024, 4096)
PRODUCTS = 40
END_TO_END, TIMES_EAGER, SHARE_OF_LIMIT, MEMORY = 0.8, 5.0, 0.75, 1.1

Rate = Callable[[], float]


def main() -> int:
    """Measure and print the figures beside the targets."""
    options = parser(__doc__).parse_args()
    if not has_bf16():
        print("benchmarks.index_build needs a CPU with BF16 instructions", file=sys.stderr)
        return 1
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as directory:
        return finish(options, *_measure(Path(directory)))


def _measure(directory: Path) -> tuple[dict[str, Any], list[Target]]:
    model = make_model()
    bundle = seal(model, directory / "bundle")
    heavy = seal_heavy(bundle, directory / "heavy")
    ads = {name: write_ads(directory / name, count) for name, count in ADS.items()}
    flops = _flops(model)
    rates = _tower_rates(bundle, model) | _product_rates(directory, flops)
    found: dict[str, list[float]] = {name: [] for name in rates}
    builds: dict[str, list[dict[str, Any]]] = {name: [] for name in (*ADS, ALONE)}
    for _ in range(ROUNDS):
        for name, rate in rates.items():
            found[name].append(rate())
        for name in ADS:
            builds[name].append(_build([bundle, heavy], ads[name], directory / "index"))
        builds[ALONE].append(_build([bundle], ads["large"], directory / "index"))
    return _report(found, builds, flops)


def _report(
    found: Mapping[str, list[float]], builds: Mapping[str, list[dict[str, Any]]], flops: int
) -> tuple[dict[str, Any], list[Target]]:
    rates, large = {name: median(values) for name, values in found.items()}, builds["large"]
    engine = large[0]["engine"]
    tower, batch = max((rate, name) for name, rate in rates.items() if name.startswith(engine))
    end_to_end, alone = (median(build["ads"] / build["seconds"] for build in builds[name]) for name in ("large", ALONE))
    eager, eager_name = max((rate, name) for name, rate in rates.items() if name.startswith("eager"))
    limit = max(rate for name, rate in rates.items() if name.startswith("product"))
    peaks = {name: median(build["own_mib"] for build in builds[name]) for name in ADS}
    figures: dict[str, Any] = {
        "schedule": f"{ROUNDS} rounds, each tower and products of every kind, then a build of each size",
        "MFLOPs an ad": flops / 1e6,
        **{f"{name}, ads/s": rate for name, rate in rates.items()},
        "engine of the build": engine,
        "tower alone": f"{tower:,.0f} ads/s, {batch}, {tower * flops / 1e9:,.0f} GFLOP/s",
        "eager, ads/s in each round": str([round(rate) for rate in found[eager_name]]),
        "BF16 limit, GFLOP/s": limit * flops / 1e9,
        "BF16 limit, times eager: no tower is above": limit / eager,
        "end to end, ads/s": end_to_end,
        "end to end, s for each build": str([round(build["seconds"], 1) for build in large]),
        "without heavy, ads/s": alone,
        "without heavy, share of the tower alone": alone / tower,
        "retrieval": str(large[0]["retrieval"]),
        "precision loss": str(large[0]["precision_loss"]),
        "warnings": str(large[0]["warnings"]),
        **{f"peak memory of {ADS[name]:,} ads, MiB": peak for name, peak in peaks.items()},
        **{
            f"peak of {ads:,} ads with mapped files, MiB": median(build["resident_mib"] for build in builds[name])
            for name, ads in ADS.items()
        },
        "memory before the build, MiB": median(build["before_mib"] for build in large),
        "first build, which compares the engines, s": builds["small"][0]["seconds"],
        "a build of the small catalogue later, s": median(build["seconds"] for build in builds["small"][1:]),
    }
    return figures, [
        Target("end to end, share of the tower alone", end_to_end / tower, at_least=END_TO_END),
        Target("tower, times eager fp32", tower / eager, at_least=TIMES_EAGER),
        Target("tower, share of the BF16 matrix limit", tower / limit, at_least=SHARE_OF_LIMIT),
        Target("peak memory, ten times the ads", peaks["large"] / peaks["small"], at_most=MEMORY),
    ]


@torch.no_grad()
def _flops(model: TwoTower) -> int:
    """FLOPs of matrix products for one ad."""
    counter = FlopCounterMode(display=False)
    with counter:
        model.pin_tower(torch.zeros(2, model.tables.flat_dim("ad")))
    return counter.get_total_flops() // 2


def _tower_rates(bundle: Bundle, model: TwoTower) -> dict[str, Rate]:
    flat = np.random.default_rng(0).standard_normal((TOWER_ROWS, model.tables.flat_dim("ad")), np.float32)
    names = [name for name in ENGINES if name not in GPU_ENGINES]
    engines = {name: open_pin_engine(bundle, name, threads=THREADS) for name in names}
    rates: dict[str, Rate] = {
        f"{name}, {batch} at once": partial(_engine_rate, engine, flat, batch)
        for name, engine in engines.items()
        for batch in TOWER_BATCHES
    }
    rows = torch.from_numpy(flat[:EAGER_ROWS])
    return rates | {f"eager, {batch} at once": partial(_eager_rate, model, rows, batch) for batch in EAGER_BATCHES}


def _engine_rate(engine: Engine, flat: np.ndarray, batch: int) -> float:
    parts = [flat[start : start + batch] for start in range(0, len(flat), batch)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda part: engine.run({"flat": part}), parts[: 2 * THREADS]))  # warm
        start = time.perf_counter()
        list(pool.map(lambda part: engine.run({"flat": part}), parts))
    return len(flat) / (time.perf_counter() - start)


@torch.no_grad()
def _eager_rate(model: TwoTower, flat: torch.Tensor, batch: int) -> float:
    model.pin_tower(flat[:batch])
    start = time.perf_counter()
    for part in flat.split(batch):
        model.pin_tower(part)
    return len(flat) / (time.perf_counter() - start)


def _product_rates(directory: Path, flops: int) -> dict[str, Rate]:
    """Ads a second that the matrix products' rate would allow."""

    def rate(product: Callable[[], Any]) -> float:
        product()
        start = time.perf_counter()
        for _ in range(PRODUCTS):
            product()
        return PRODUCTS * GEMM_FLOPS / (time.perf_counter() - start) / flops

    products = bf16_products(directory, threads=THREADS)
    return {f"product by {name}": partial(rate, product) for name, product in products.items()}


def _build(bundles: Sequence[Bundle], ads: Path, out: Path) -> dict[str, Any]:
    """One build, whose cache is beside its output: the first one compares engines, as on a new machine."""
    two_tower, *heavy = (str(bundle.path) for bundle in bundles)
    command = [sys.executable, "-m", "benchmarks.index_build_job", two_tower, str(ads), str(out), str(THREADS), *heavy]
    cache = {"XDG_CACHE_HOME": str(out.parent / "cache")}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | cache)
    if result.returncode:
        raise RuntimeError(f"the build failed: {result.stderr[-2000:]}")
    subprocess.run(["rm", "-rf", str(out)], check=True)
    return json.loads(result.stdout)


if __name__ == "__main__":
    sys.exit(main())
