"""``torchrun -m adsieve distill train``: two processes distil the student of one, also when they are killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from contracts.config import dump_yaml
from contracts.records import LogPaths
from contracts.schema import FeatureSchema, save_schema
from distill.config import DistillConfig
from distill.run import Run, load_run
from distill.train import train_student
from distill.warmstart import open_source
from modeling.weights import model_weights

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_distil_the_student_of_one(
    schema: FeatureSchema, config: DistillConfig, log_directory: Path, run: Run, tmp_path: Path
) -> None:
    """1e-3 of weights about 1: sums in another order, carried on by hundreds of steps of Adam with a large rate."""
    process = _started(_command(schema, config, log_directory, tmp_path))
    output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output
    assert output.count("distilled shopping from") == 1
    _assert_alike(load_run(tmp_path / "run"), run)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_with_every_term_and_killed_on_the_way_a_warm_run_ends_like_that_of_one_process(
    schema: FeatureSchema, config: DistillConfig, log_directory: Path, log: LogPaths, run: Run, tmp_path: Path
) -> None:
    """Kill -9 of the main process and of all; the tolerance is that of the run without a kill."""
    rich = msgspec.structs.replace(
        config,
        loop=msgspec.structs.replace(config.loop, epochs=12, checkpoint_every=4),
        label_weight=0.25,
        listwise_weight=0.3,
        listwise_temperature=2.0,
        stage_weights={"winner": 2.0},
        propensity_weights=True,
    )
    source = open_source(run.path)
    alone = train_student(schema, log, tmp_path / "alone", rich, scenario="shopping", warm_start=source)
    command = _command(schema, rich, log_directory, tmp_path, "--warm-start", run.path)
    reached: int | None = -1
    for killed in ("main", "all"):
        process = _started(command)
        reached = _checkpoint_above(tmp_path / "run", process, reached)
        assert reached is not None, f"the run had ended before {killed} was killed"
        workers = psutil.Process(process.pid).children(recursive=True)
        for victim in workers[:1] if killed == "main" else [process, *workers]:
            victim.kill()
        process.communicate(timeout=120)
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert not alive
    last = _started(command)
    output = last.communicate(timeout=600)[0]
    assert last.returncode == 0, output
    trained = load_run(tmp_path / "run")
    assert trained.summary.warm_start == alone.summary.warm_start
    _assert_alike(trained, alone)


def _command(
    schema: FeatureSchema, config: DistillConfig, log_directory: Path, directory: Path, *more: object
) -> list[str]:
    """Two processes that leave their run in ``directory / "run"``."""
    save_schema(schema, directory / "schema.yaml")
    dump_yaml(config, directory / "config.yaml")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "--"]
    given = ["--logs", log_directory, "--schema", directory / "schema.yaml", "--config", directory / "config.yaml"]
    command = [*torchrun, "adsieve", "distill", "train", *given, "--scenario", "shopping", "--out", directory / "run"]
    return [str(word) for word in (*command, *more)]


def _started(command: list[str]) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )


def _checkpoint_above(run: Path, process: subprocess.Popen[str], step: int) -> int | None:
    """The newest checkpoint's step once it is above one; None when the run has ended before."""
    while process.poll() is None:
        steps = [int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*")]
        if max(steps, default=-1) > step:
            return max(steps)
        time.sleep(0.01)
    return None


def _assert_alike(trained: Run, expected: Run) -> None:
    """The runs of two processes and of one."""
    weights, others = model_weights(trained.model), model_weights(expected.model)
    assert max(float((weights[name] - value).abs().max()) for name, value in others.items()) < 1e-3
    looks = zip(trained.summary.history, expected.summary.history, strict=True)
    for look, other in looks:
        assert look["step"] == other["step"]
        assert look["loss"] == pytest.approx(other["loss"], abs=1e-4)
    assert trained.summary.metrics["validation_kl"] == pytest.approx(
        expected.summary.metrics["validation_kl"], abs=1e-4
    )
