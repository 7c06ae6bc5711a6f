"""The heavy ranker at ``iqiyi()`` sizes, served: each engine against the naive way, look-ups included.

From encoded ids and floats of one request and its survivors to their logits. Naive: eager fp32 torch, the user side
repeated for each ad, one ``nn.Embedding`` or ``nn.EmbeddingBag`` a feature. Ours: the request once, the ads behind it,
merged look-ups, by each engine that runs on a CPU. Every history has its full 50 events.

All variants run in one process, in interleaved blocks: a block is 12 calls of one variant (of the naive one 3), each
after one call that is not counted, and there are 5 rounds of blocks. The BF16 matrix rate is the better one of torch
and OpenVINO on a product of 1024 x 1024 x 1024, from blocks of the same rounds; the share of it counts the FLOPs that
the trained model needs with its request encoded once, and beside it the fewer that its exported graphs do.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.harness import Target, finish, parser
from benchmarks.heavy_serving_setup import GEMM_FLOPS, Rows, Setup, bf16_products, rows, score, serving, set_up
from benchmarks.naive_serving import NaiveServing
from contracts.probability import sigmoid
from engines.int8_tables import SCALE_SUFFIX, quantise_table
from engines.openvino_cpu import has_bf16
from engines.rank_correlation import rank_correlation
from heavy_ranker.export_graphs import with_gains_folded
from heavy_ranker.export_split import with_split_mixers
from heavy_ranker.flops import Flops, count_flops
from heavy_ranker.serving import HeavyServing
from heavy_ranker.serving_engines import ADS_GRAPH, REQUEST_GRAPH

SURVIVORS = (50, 100, 200, 500)
TOGETHER, SHORT_HISTORY = 4, 12
ROUNDS, CALLS, NAIVE_CALLS = 5, 12, 3
EXACT, BF16 = ("onnxruntime_cpu", "openvino_fp32"), "openvino_bf16"
EXACT_SPEEDUP, BF16_SPEEDUP = {100: 16.0, 500: 22.0}, {100: 25.0, 500: 38.0}
BF16_SHARE = 0.55
FP32_ERROR, BF16_ERROR, BF16_ORDER = 1e-5, 6e-3, 0.999

Call = Callable[[], object]
Engines = Mapping[str, HeavyServing]


def main() -> int:
    """Measure every variant and print the figures beside the targets."""
    options = parser(__doc__).parse_args()
    if not has_bf16():
        print("benchmarks.heavy_serving needs a CPU with BF16 instructions", file=sys.stderr)
        return 1
    torch.set_num_threads(2)
    figures: dict[str, Any] = {"schedule": f"{ROUNDS} rounds of blocks of {CALLS} calls, naive {NAIVE_CALLS}"}
    with tempfile.TemporaryDirectory() as directory:
        setup = set_up(Path(directory))
        flops = count_flops(setup.ranker, setup.schema)
        done = count_flops(with_split_mixers(with_gains_folded(setup.ranker)), setup.schema)
        figures |= {"FLOPs": str(flops), "FLOPs as exported": str(done)} | _sizes(setup)
        engines = _load(setup, figures)
        targets = [*_survivors(setup, engines, (flops, done), figures), *_errors(setup, engines, figures)]
        _together(setup, engines, figures)
        _short_histories(setup, figures)
        _one_thread(setup, figures)
        _int8_tables(setup, engines, figures)
    return finish(options, figures, targets)


def measure(variants: Mapping[str, Call]) -> dict[str, tuple[float, float]]:
    """p50 and p95 in milliseconds of each variant, from interleaved blocks."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, call in variants.items():
            call()
            for _ in range(NAIVE_CALLS if name == "naive" else CALLS):
                start = time.perf_counter()
                call()
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: (median(found), float(np.quantile(found, 0.95))) for name, found in times.items()}


def _sizes(setup: Setup) -> dict[str, Any]:
    graphs = sum((setup.directory / graph).stat().st_size for graph in (REQUEST_GRAPH, ADS_GRAPH))
    tables = sum(table.nbytes for table in setup.tables.values())
    return {"graphs, MB": graphs / 1e6, "tables, MB": tables / 1e6}


def _load(setup: Setup, figures: dict[str, Any]) -> dict[str, HeavyServing]:
    """Each engine after one request, prepared for all numbers of survivors, and the memory that it took: graphs, merged
    tables and working memory."""
    process, warm, engines = psutil.Process(), rows(setup, requests=1, ads=max(SURVIVORS)), {}
    for name in (*EXACT, BF16):
        before, start = process.memory_info().rss, time.perf_counter()
        engines[name] = serving(setup, name, threads=2, prepared=SURVIVORS)
        figures[f"{name}, s to load"] = time.perf_counter() - start
        score(engines[name], warm)
        figures[f"{name}, MB resident"] = (process.memory_info().rss - before) / 1e6
    return engines


def _survivors(setup: Setup, engines: Engines, flops: tuple[Flops, Flops], figures: dict[str, Any]) -> list[Target]:
    """One request at each number of survivors; speed-ups and shares of the matrix rate, by both counts of FLOPs."""
    targets = []
    naive = NaiveServing(setup.ranker, setup.layouts, setup.tables)
    products = bf16_products(setup.directory, threads=2)
    for count in SURVIVORS:
        given = rows(setup, requests=1, ads=count)
        variants: dict[str, Call] = {"naive": partial(naive, given.query, given.ad, given.pair)}
        variants |= {name: partial(score, served, given) for name, served in engines.items()}
        found = measure(variants | products)
        _report(f"{count} survivors", {name: found[name] for name in variants}, figures)
        speedup = {name: found["naive"][0] / found[name][0] for name in engines}
        figures |= {f"{count} survivors, {name}, times faster": value for name, value in speedup.items()}
        rate = GEMM_FLOPS / min(found[name][0] for name in products) / 1e6
        work, done = (counted.request + counted.ad * count for counted in flops)
        share = work / found[BF16][0] / 1e6 / rate
        figures |= {f"{count} survivors, MFLOPs": work / 1e6, f"{count} survivors, share of BF16 rate": share}
        figures[f"{count} survivors, share of BF16 rate by FLOPs as exported"] = share * done / work
        figures[f"{count} survivors, BF16 matrix rate, GFLOP/s"] = rate
        if count in EXACT_SPEEDUP:
            exact = max(speedup[name] for name in EXACT)
            targets += [
                Target(f"exact fp32, times faster at {count}", exact, at_least=EXACT_SPEEDUP[count]),
                Target(f"BF16, times faster at {count}", speedup[BF16], at_least=BF16_SPEEDUP[count]),
            ]
        if count == max(SURVIVORS):  # where products are large enough for a rate to mean something
            targets.append(Target(f"share of the BF16 matrix rate at {count}", share, at_least=BF16_SHARE))
    return targets


def _errors(setup: Setup, engines: Engines, figures: dict[str, Any]) -> list[Target]:
    """Probabilities of four requests with 500 ads each, against the fp32 module."""
    given = rows(setup, requests=TOGETHER, ads=max(SURVIVORS))
    naive = NaiveServing(setup.ranker, setup.layouts, setup.tables)
    parts = [given.of_request(request) for request in range(TOGETHER)]
    wanted = sigmoid(np.concatenate([naive(part.query, part.ad, part.pair) for part in parts]))
    figures["probabilities, spread"] = f"{wanted.min():.3f} to {wanted.max():.3f}, deviation {wanted.std():.3f}"
    targets = []
    for name, served in engines.items():
        got = sigmoid(score(served, given))
        error = float(np.abs(got - wanted).max())
        bound = BF16_ERROR if name == BF16 else FP32_ERROR
        targets.append(Target(f"{name}, error of a probability", error, at_most=bound))
        if name == BF16:
            order = rank_correlation(wanted, got)
            targets.append(Target(f"{name}, rank correlation", order, at_least=BF16_ORDER))
    return targets


def _together(setup: Setup, engines: Engines, figures: dict[str, Any]) -> None:
    """Four requests with 100 ads each, in one batch and one after another."""
    given = rows(setup, requests=TOGETHER, ads=100)
    parts = [given.of_request(request) for request in range(TOGETHER)]
    variants: dict[str, Call] = {}
    for name, served in engines.items():
        variants[f"{name}, one batch"] = partial(score, served, given)
        variants[f"{name}, one by one"] = partial(_one_by_one, served, parts)
    _report(f"{TOGETHER} requests of 100", measure(variants), figures)


def _one_by_one(served: HeavyServing, parts: list[Rows]) -> None:
    for part in parts:
        score(served, part)


def _short_histories(setup: Setup, figures: dict[str, Any]) -> None:
    """A request whose histories hold 12 events of 50, in engines that prepare for no size: these are cut."""
    engines = {name: serving(setup, name, threads=2) for name in (*EXACT, BF16)}
    given = rows(setup, requests=1, ads=100, events=SHORT_HISTORY)
    variants: dict[str, Call] = {name: partial(score, served, given) for name, served in engines.items()}
    _report(f"100 survivors, histories of {SHORT_HISTORY}", measure(variants), figures)


def _one_thread(setup: Setup, figures: dict[str, Any]) -> None:
    engines = {name: serving(setup, name, threads=1, prepared=(100,)) for name in (*EXACT, BF16)}
    naive = NaiveServing(setup.ranker, setup.layouts, setup.tables)
    torch.set_num_threads(1)
    given = rows(setup, requests=1, ads=100)
    variants: dict[str, Call] = {"naive": partial(naive, given.query, given.ad, given.pair)}
    variants |= {name: partial(score, served, given) for name, served in engines.items()}
    found = measure(variants)
    torch.set_num_threads(2)
    _report("1 thread, 100 survivors", found, figures)
    figures |= {
        f"1 thread, 100 survivors, {name}, times faster": found["naive"][0] / found[name][0] for name in engines
    }


def _int8_tables(setup: Setup, engines: Engines, figures: dict[str, Any]) -> None:
    """Tables in int8: memory, speed of the whole request, and what rounding them changes."""
    tables: dict[str, np.ndarray] = {}
    for name, values in setup.tables.items():
        tables[name], tables[f"{name}{SCALE_SUFFIX}"] = quantise_table(values)
    figures["int8 tables, MB"] = sum(values.nbytes for values in tables.values()) / 1e6
    given = rows(setup, requests=1, ads=500)
    exact, rounded = engines[EXACT[0]], serving(setup, EXACT[0], threads=2, tables=tables)
    wanted, got = (sigmoid(score(served, given)) for served in (exact, rounded))
    figures["int8 tables, error of a probability"] = float(np.abs(got - wanted).max())
    figures["int8 tables, rank correlation"] = rank_correlation(wanted, got)
    fast = serving(setup, BF16, threads=2, tables=tables, prepared=(500,))
    variants: dict[str, Call] = {"fp32 tables": partial(score, engines[BF16], given)}
    _report(f"500 survivors, {BF16}", measure(variants | {"int8 tables": partial(score, fast, given)}), figures)


def _report(title: str, found: Mapping[str, tuple[float, float]], figures: dict[str, Any]) -> None:
    for name, (p50, p95) in found.items():
        figures[f"{title}, {name}, ms"] = f"{p50:.2f} p50, {p95:.2f} p95"


if __name__ == "__main__":
    sys.exit(main())
