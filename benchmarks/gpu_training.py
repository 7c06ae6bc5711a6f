"""A training step of both models' dense layers on a GPU beside the CPU: forward, backward and AdamW, in BF16.

Heavy ranker of ``iqiyi()`` sizes, 128 requests of 8 ads; both ``standard()`` towers, 1,024 pairs of 128 requests and
1,024 ads. Embedding tables are left out, since those on a GPU need ``fbgemm-gpu``: what is measured is 86 to 96 % of a
step on a CPU. Needs torch alone. Not yet run on a GPU.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_timing import compared, described, device_fault, gpu_parser, medians_ms, refuse
from benchmarks.harness import Target, finish
from benchmarks.iqiyi_schema import iqiyi_schema
from contracts.layout import side_layout
from heavy_ranker.build import build_ranker
from heavy_ranker.presets import iqiyi, small
from heavy_ranker.rows import EvenRows
from modeling.precision import autocast
from towers.build import build_tower
from towers.presets import standard

REQUESTS, ADS = 128, 8
TINY_REQUESTS = 4
HEADS = 2


def main() -> int:
    """Median milliseconds of a step on each device, and their ratio."""
    options = gpu_parser(__doc__).parse_args()
    fault = device_fault("benchmarks.gpu_training", options.device)
    if fault is not None:
        return refuse(fault)
    figures: dict[str, Any] = described(options.device)
    targets = []
    for name, build in (("heavy", heavy_step), ("towers", tower_step)):
        runs = {"cpu": build("cpu", options.device == "cpu")}
        runs[f"on {options.device}"] = build(options.device, options.device == "cpu")
        figures |= compared(f"{name} step", medians_ms(runs, options.device), baseline="cpu")
        if options.device != "cpu":
            ratio = figures[f"{name} step, cpu over on {options.device}"]
            targets.append(Target(f"{name} step, cpu over {options.device}", ratio, at_least=1.0))
    return finish(options, figures, targets)


def heavy_step(device: str, is_tiny: bool) -> Callable[[], float]:
    """A step of the heavy ranker's dense layers."""
    torch.manual_seed(0)
    schema, requests = iqiyi_schema(), TINY_REQUESTS if is_tiny else REQUESTS
    ranker = build_ranker(schema, (small() if is_tiny else iqiyi()).model).train().to(device)
    layouts = {side: side_layout(schema, side) for side in ("query", "ad", "pair")}
    flat = {
        side: torch.randn(
            requests * (1 if side == "query" else ADS), layout.flat_dim(pool_sequences=False), device=device
        )
        for side, layout in layouts.items()
    }
    events = {
        sequence.name: (
            torch.randn(requests, sequence.max_length, sequence.dim, device=device),
            torch.ones(requests, sequence.max_length, device=device),
        )
        for sequence in layouts["query"].sequences
    }

    def logits() -> Tensor:
        state = ranker.encode_request(flat["query"], events)
        return ranker.score_ads(state, EvenRows(requests, ADS), flat["ad"], flat["pair"])

    return partial(_step, ranker, logits, torch.optim.AdamW(ranker.parameters(), lr=1e-4), device)


def tower_step(device: str, is_tiny: bool) -> Callable[[], float]:
    """A step of both towers; each request is paired with its own ads."""
    torch.manual_seed(0)
    schema, requests, config = iqiyi_schema(), TINY_REQUESTS if is_tiny else REQUESTS, standard()
    widths = {side: side_layout(schema, side).flat_dim(pool_sequences=True) for side in ("query", "ad")}
    towers = nn.ModuleDict(
        {
            "query": build_tower(config.query, widths["query"], HEADS, config.head_dim, "query"),
            "ad": build_tower(config.pin, widths["ad"], HEADS, config.head_dim, "ad"),
        }
    ).to(device)
    flat = {
        "query": torch.randn(requests, widths["query"], device=device),
        "ad": torch.randn(requests * ADS, widths["ad"], device=device),
    }

    def logits() -> Tensor:
        query, ads = (towers[side](flat[side]) for side in ("query", "ad"))
        return (query.repeat_interleave(ADS, 0) * ads).sum(2)

    return partial(_step, towers, logits, torch.optim.AdamW(towers.parameters(), lr=1e-4), device)


def _step(module: nn.Module, logits: Callable[[], Tensor], optimizer: torch.optim.Optimizer, device: str) -> float:
    """One step; ends when its loss is on the host."""
    with autocast("bf16", torch.device(device).type):
        loss = nn.functional.softplus(logits().float()).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


if __name__ == "__main__":
    sys.exit(main())
