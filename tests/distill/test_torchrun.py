"""``torchrun -m adsieve distill train``: two processes distil the student of one; killing is tested with the ranker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.config import dump_yaml
from contracts.schema import FeatureSchema, save_schema
from distill.config import DistillConfig
from distill.run import Run, load_run
from modeling.weights import model_weights

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_distil_the_student_of_one(
    schema: FeatureSchema, config: DistillConfig, log_directory: Path, run: Run, tmp_path: Path
) -> None:
    """1e-3 of weights about 1: sums in another order, carried on by hundreds of steps of Adam with a large rate."""
    save_schema(schema, tmp_path / "schema.yaml")
    dump_yaml(config, tmp_path / "config.yaml")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    options = {
        "--logs": log_directory,
        "--schema": tmp_path / "schema.yaml",
        "--config": tmp_path / "config.yaml",
        "--scenario": "shopping",
        "--out": tmp_path / "run",
    }
    command = [*torchrun, "adsieve", "distill", "train", *(str(part) for pair in options.items() for part in pair)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("distilled shopping from") == 1

    trained = load_run(tmp_path / "run")
    weights, expected = model_weights(trained.model), model_weights(run.model)
    assert max(float((weights[name] - value).abs().max()) for name, value in expected.items()) < 1e-3
    assert [look["step"] for look in trained.summary.history] == [look["step"] for look in run.summary.history]
    for look, other in zip(trained.summary.history, run.summary.history, strict=True):
        assert look["loss"] == pytest.approx(other["loss"], abs=1e-4)
    assert trained.summary.metrics["validation_kl"] == pytest.approx(run.summary.metrics["validation_kl"], abs=1e-4)
