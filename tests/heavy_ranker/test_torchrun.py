"""``torchrun -m adsieve heavy train``: two processes train the model of one, also when they are killed on the way."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
import torch

from contracts.config import dump_yaml
from contracts.schema import save_schema
from heavy_ranker.run import load_run
from heavy_ranker.train import train_heavy
from modeling.weights import model_weights

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(1200)

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def files(schema, config, log, tmp_path):
    """Schema, configuration with many checkpoints, and log, as options."""
    often = msgspec.structs.replace(config, loop=msgspec.structs.replace(config.loop, checkpoint_every=4))
    save_schema(schema, tmp_path / "schema.yaml")
    dump_yaml(often, tmp_path / "config.yaml")
    directory = Path(log.requests).parent
    return ["--logs", directory, "--schema", tmp_path / "schema.yaml", "--config", tmp_path / "config.yaml"]


def torchrun(*arguments, restarts=0):
    """Two processes on a port of their own; ``--`` keeps torchrun from reading our options."""
    options = ["--standalone", "--nproc-per-node", 2, "--max-restarts", restarts, "-m", "--"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "adsieve", "heavy", "train", *arguments]
    return subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_checkpoint(out, process, above=-1):
    """The newest checkpoint's step once it is above a step; None when the run has ended before."""
    while process.poll() is None:
        newest = newest_checkpoint(out)
        if newest > above:
            return newest
        time.sleep(0.01)
    return None


def newest_checkpoint(out):
    """The step of the newest checkpoint; -1 without one."""
    return max((int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*")), default=-1)


def workers_of(process):
    return psutil.Process(process.pid).children(recursive=True)


def largest_difference(first, second):
    weights, others = model_weights(first), model_weights(second)
    assert weights.keys() == others.keys()
    return max(float((weights[name] - others[name]).abs().max()) for name in weights)


def test_two_processes_one_of_which_is_killed_train_the_model_of_one(files, run, tmp_path):
    """1e-4 of weights about 1: sums in another order differ by 1e-7, and 92 steps of Adam carry that on (2e-6 seen)."""
    process = torchrun(*files, "--out", tmp_path / "run", restarts=1)
    assert wait_for_checkpoint(tmp_path / "run", process) is not None
    workers_of(process)[0].kill()
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert output.count("trained on 1,437 impressions") == 1

    found = load_run(tmp_path / "run")
    assert largest_difference(found.model, run.model) < 1e-4
    assert found.summary.parameters == run.summary.parameters
    for look, expected in zip(found.summary.history, run.summary.history, strict=True):
        assert look["step"] == expected["step"]
        assert look["train_loss"] == pytest.approx(expected["train_loss"], abs=1e-5)
        assert look["loss"] == pytest.approx(expected["loss"], abs=1e-5)


def test_a_fault_of_the_input_ends_all_processes_and_is_told_once(files, tmp_path):
    process = torchrun(*files[2:], "--logs", tmp_path / "nowhere", "--out", tmp_path / "run")
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 1  # torchrun's own; the process that failed had 2
    assert output.count("error: ") == 1
    assert "nowhere/requests: no Parquet file here" in output
    assert "exitcode  : 2" in output


@pytest.mark.slow
def test_one_process_goes_on_where_two_were_killed(files, schema, config, log, run, tmp_path):
    process = torchrun(*files, "--out", tmp_path / "run")
    assert wait_for_checkpoint(tmp_path / "run", process, above=30) is not None
    _kill("all", process, random.Random(0))
    often = msgspec.structs.replace(config, loop=msgspec.structs.replace(config.loop, checkpoint_every=4))
    found = train_heavy(schema, log, tmp_path / "run", often)
    assert largest_difference(found.model, run.model) < 1e-4


@pytest.mark.slow
def test_a_run_that_is_killed_in_every_way_ends_with_the_same_bits(files, tmp_path):
    files = [*files, "--epochs", 16]  # workers go on for a while after torchrun has gone: the end is far enough away
    straight = torchrun(*files, "--out", tmp_path / "straight")
    straight.communicate(timeout=600)
    assert straight.returncode == 0
    generator = random.Random(5)
    for who in ("one worker", "torchrun alone", "all", "one worker", "torchrun alone"):
        before = newest_checkpoint(tmp_path / "broken")  # a kill comes later than the checkpoint that was waited for
        process = torchrun(*files, "--out", tmp_path / "broken")
        reached = wait_for_checkpoint(tmp_path / "broken", process, above=before)
        assert reached is not None, f"the run had ended before {who} was killed"
        _kill(who, process, generator)
    last = torchrun(*files, "--out", tmp_path / "broken")
    last.communicate(timeout=600)
    assert last.returncode == 0
    broken, expected = (load_run(tmp_path / name) for name in ("broken", "straight"))
    assert broken.summary == expected.summary
    weights = model_weights(expected.model)
    assert all(torch.equal(weights[name], value) for name, value in model_weights(broken.model).items())


def _kill(who, process, generator):
    """Kill -9, then wait until nothing of the run is left: workers end themselves when torchrun has gone."""
    time.sleep(generator.random() * 0.2)
    workers = workers_of(process)
    assert workers, process.communicate()[0]
    victims = {"one worker": [generator.choice(workers)], "torchrun alone": [process], "all": [process, *workers]}
    for victim in victims[who]:
        victim.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers):
        assert time.monotonic() < deadline, "workers outlived torchrun"
        time.sleep(0.05)
