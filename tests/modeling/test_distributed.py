"""Shares of a batch, and what several processes agree on; the processes are real ones, started by torchrun."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.errors import ConfigError
from contracts.records import LogPaths
from contracts.schema import FeatureSchema, save_schema
from modeling.batches import ShuffledBatches, gather_share, ordered_batches
from modeling.dense_optimizer import scaled_rate
from modeling.distributed import ALONE, Ranks, join_ranks
from modeling.examples import Examples, encode_log
from modeling.loop_config import LoopConfig

SCRIPT = Path(__file__).with_name("rank_checks.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def examples(small_schema: FeatureSchema, small_log: object, tmp_path_factory: pytest.TempPathFactory) -> Examples:
    paths: LogPaths = small_log.paths  # type: ignore[attr-defined]
    return encode_log(small_schema, paths, tmp_path_factory.mktemp("examples"), teacher=False, labels=True)


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, id="gloo"),
        pytest.param(
            {},
            id="nccl",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
            ],
        ),
    ],
)
def test_divided_tables_equal_whole_ones_and_processes_agree(
    small_schema: FeatureSchema, tmp_path: Path, devices: dict[str, str]
) -> None:
    """Differences come from the order of additions alone: a few units in the last place of numbers about 1."""
    save_schema(small_schema, tmp_path / "schema.yaml")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(SCRIPT), str(tmp_path / "schema.yaml"), str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **devices}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    largest = re.search(r"largest difference (\S+)", found.stdout)
    assert largest is not None
    assert float(largest[1]) < 2e-6
    assert "the weights of process 1 differ from those of process 0" in found.stdout


@pytest.mark.parametrize("size", [2, 3, 7])
def test_shares_are_whole_requests_and_make_up_the_batch(size: int) -> None:
    generator = np.random.default_rng(size)
    for _ in range(20):
        counts = generator.integers(1, 6, int(generator.integers(1, 12)))
        requests = np.repeat(generator.permutation(50)[: len(counts)], counts)
        parts = [requests[Ranks(rank=rank, size=size).share(requests)] for rank in range(size)]
        np.testing.assert_array_equal(np.concatenate(parts), requests)
        groups = [set(part.tolist()) for part in parts]
        assert sum(len(group) for group in groups) == len(counts)
        assert max(len(part) for part in parts) <= len(requests) / size + counts.max()


def test_processes_see_the_batches_of_one(examples: Examples) -> None:
    def rows(ranks: Ranks) -> list[list[int]]:
        source = ShuffledBatches(examples, pairs_per_batch=12, by="request", seed=4, ranks=ranks)
        return [batch.rows.tolist() for batch in (*source.epoch(1), *_ordered(examples, ranks))]

    first, second = (rows(Ranks(rank=rank, size=2)) for rank in range(2))
    assert [left + right for left, right in zip(first, second, strict=True)] == rows(ALONE)


def _ordered(examples: Examples, ranks: Ranks) -> list:
    return list(ordered_batches(examples, pairs_per_batch=7, ranks=ranks))


def test_a_process_without_a_share_holds_a_pair_that_counts_for_nothing(examples: Examples) -> None:
    one_request = np.flatnonzero(examples.request_row == examples.request_row[0])
    shares = [gather_share(examples, one_request, Ranks(rank=rank, size=3)) for rank in range(3)]
    assert sorted(len(share) for share in shares) == [0, 0, len(one_request)]
    empty = min(shares, key=len)
    assert len(empty.query.ids) == len(empty.weight) == 1
    assert empty.labels.isnan().all()
    assert not empty.weight.any()


def test_one_process_exchanges_nothing() -> None:
    values = torch.ones(2)
    assert ALONE.sum(values) is values
    assert ALONE.from_main(0.5) == 0.5
    assert ALONE.gather(values) == [values]
    with join_ranks() as ranks, ranks.main_first():
        ranks.wait()
        assert ranks == ALONE


def test_the_rate_follows_the_root_of_the_batch_size() -> None:
    config = LoopConfig(learning_rate=0.1, reference_batch_size=64)
    assert scaled_rate(config, 64) == 0.1
    assert scaled_rate(config, 1024) == pytest.approx(0.4)
    assert scaled_rate(LoopConfig(learning_rate=0.1), None) == 0.1
    with pytest.raises(ConfigError, match=r"loop\.reference_batch_size: got 64, but this training has no batch size"):
        scaled_rate(config, None)
