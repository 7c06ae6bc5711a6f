"""Checks that need several processes; torchrun starts this file in each, and a test reads what the first prints."""

import sys
from pathlib import Path

import torch
from torch import nn

from contracts.errors import AdsieveError
from contracts.schema import FeatureSchema, load_schema
from modeling.distributed import Ranks, join_ranks
from modeling.lookups import SideInputs
from modeling.tables import FeatureTables

SIDES = ("query", "ad", "pair")


def loss_of(found: dict[str, SideInputs]) -> torch.Tensor:
    """A sum over rows, so that the shares of two processes add up, in which every entry has a gradient of its own."""
    tensors = [t for side in found.values() for t in (side.flat, *(events for events, _ in side.sequences.values()))]
    return sum((torch.arange(1.0, 1 + t.shape[-1], device=t.device) * t).sin().sum() for t in tensors)


def random_sides(schema: FeatureSchema, tables: FeatureTables, rows: int, seed: int) -> dict:
    """Ids with padding anywhere in a bag, one side without any id at all."""
    generator = torch.Generator().manual_seed(seed)
    sides = {}
    for side, layout in tables.layouts.items():
        limits = tables.stack.limits(layout)
        ids = (torch.rand(rows, layout.num_ids, generator=generator) * limits).int()
        if side == "query":  # the mask of a sequence is that of each of its fields
            for sequence in layout.sequences:
                length = torch.randint(0, sequence.max_length + 1, (rows, 1), generator=generator)
                for field in sequence.fields:
                    part = ids[:, field.start : field.start + field.width]
                    part.clamp_(min=1).mul_(torch.arange(field.width) < length)
        sides[side] = (ids, torch.rand(rows, layout.num_floats, generator=generator))
    return sides


def check_tables(schema: FeatureSchema, ranks: Ranks, *, pool_sequences: bool) -> float:
    """Three steps on divided tables, each process on half of the rows, against one process on all of them."""
    whole, divided = (
        FeatureTables(schema, SIDES, pool_sequences=pool_sequences, learning_rate=0.1, seed=5) for _ in range(2)
    )
    divided.shard(ranks)
    worst = 0.0
    for step in range(3):
        rows = random_sides(schema, whole, 12, step)
        mine = {
            side: (ids[ranks.rank :: 2].to(ranks.device), floats[ranks.rank :: 2].to(ranks.device))
            for side, (ids, floats) in rows.items()
        }
        for tables in (whole, divided):
            tables.scale_learning_rate(1 / (1 + step))
        expected, found = whole.forward_sides(rows), divided.forward_sides(mine)
        for side in SIDES:
            worst = max(worst, _apart(found[side].flat, expected[side].flat[ranks.rank :: 2]))
            for name, (events, mask) in found[side].sequences.items():
                worst = max(worst, _apart(events, expected[side].sequences[name][0][ranks.rank :: 2]))
                assert torch.equal(mask.cpu(), expected[side].sequences[name][1][ranks.rank :: 2])
        loss_of(expected).backward()
        loss_of(found).backward()
    matrices, squares = divided.matrices(), divided.optimizer_state()
    for name, matrix in matrices.items():
        worst = max(worst, _apart(matrix, whole.matrices()[name]))
    for name, accumulated in squares.items():
        torch.testing.assert_close(accumulated, whole.optimizer_state()[name], rtol=1e-4, atol=1e-5)
    # what was gathered can be put back, and fresh tables are those of one process
    divided.reinitialise(["ad"], seed=9)
    whole.reinitialise(["ad"], seed=9)
    for name, matrix in divided.matrices().items():
        worst = max(worst, _apart(matrix, whole.matrices()[name]))
    divided.load_matrices(whole.matrices())
    for name, matrix in divided.matrices().items():
        assert torch.equal(matrix, whole.matrices()[name])
    return worst


def check_gradients(ranks: Ranks) -> None:
    """Sums over processes; what nobody used stays without a gradient."""
    both, one, none = (nn.Parameter(torch.zeros(2, 3, device=ranks.device)) for _ in range(3))
    both.grad = torch.full_like(both, 1.0 + ranks.rank)
    one.grad = torch.full_like(one, 5.0) if ranks.rank == 1 else None
    ranks.sum_gradients([both, one, none])
    assert torch.equal(both.grad, torch.full_like(both, 3.0))
    assert one.grad is not None
    assert torch.equal(one.grad, torch.full_like(one, 5.0))
    assert none.grad is None


def check_agreement(ranks: Ranks, directory: Path) -> str:
    """Weights that differ are found, and the main process's number counts."""
    ranks.check_equal({"a": torch.ones(3)}, "the weights")
    assert ranks.from_main(0.1 + ranks.rank) == 0.1
    with ranks.main_first():
        if ranks.is_main:
            (directory / "first").touch()
        assert (directory / "first").exists()
    try:
        ranks.check_equal({"a": torch.full((3,), float(ranks.rank))}, "the weights")
    except AdsieveError as error:
        return str(error)
    return "nothing"


def _apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.cpu() - expected).detach().abs().max())


if __name__ == "__main__":
    with join_ranks() as joined:
        wanted = load_schema(Path(sys.argv[1]))
        gaps = [check_tables(wanted, joined, pool_sequences=pooled) for pooled in (True, False)]
        check_gradients(joined)
        told = check_agreement(joined, Path(sys.argv[2]))
        if joined.is_main:
            print(f"largest difference {max(gaps):.1e}")
            print(told)
