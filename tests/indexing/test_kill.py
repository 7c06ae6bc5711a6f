"""A job killed at any step leaves a state that readers accept and that the next run completes.

The job runs in a process of its own, which kills itself (SIGKILL) just before its n-th change to the file system. A dry
run counts the changes; n is drawn at random among them.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.bundle import open_bundle
from contracts.release import Release
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.nightly import build_index
from indexing.store import DirectoryStore

JOB = """
import os, signal, sys
from datetime import datetime
from pathlib import Path
from indexing.config import IndexConfig
from indexing.nightly import build_index
from indexing.store import DirectoryStore

job, kill_at, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
CHANGES = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
steps = 0

def count(event, arguments):
    global steps
    if event in CHANGES or (event == "open" and set(str(arguments[1])) & set("wa+x")):
        steps += 1
        if steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

def build():
    build_index(
        ads=directory / "ads",
        two_tower=directory / "two_tower",
        heavy=directory / "heavy",
        out=directory / "index",
        config=IndexConfig(threads=1, batch_size=16, checkpoint_ads=32, engine="onnxruntime_cpu"),
    )

def publish():
    DirectoryStore(directory / "store").publish(
        two_tower=directory / "two_tower", heavy=directory / "heavy", index=directory / "index"
    )

sys.addaudithook(count)
{"build": build, "publish": publish}[job]()
print(steps)
"""


def run(job: str, directory: Path, kill_at: int = 0) -> int:
    """Run a job, killed before its ``kill_at``-th change; return how many changes it made, or -SIGKILL."""
    command = [sys.executable, "-c", JOB, job, str(kill_at), str(directory)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # else the first run makes more changes than the next
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    if result.returncode == -signal.SIGKILL:
        return -signal.SIGKILL
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@pytest.fixture
def directory(ads: Path, bundles: Path, tmp_path: Path) -> Path:
    for name in ("two_tower", "heavy"):
        shutil.copytree(bundles / name, tmp_path / name)
    shutil.copytree(ads, tmp_path / "ads")
    return tmp_path


def hidden(directory: Path) -> list[str]:
    return [str(path) for path in directory.rglob(".*") if path.name != ".lock"]


def moments(num_steps: int, count: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(1, num_steps + 1), count)


def kill_build(directory: Path, count: int, seed: int) -> None:
    num_steps = run("build", directory)
    expected = Index.open(directory / "index").manifest.version
    for kill_at in moments(num_steps, count, seed):
        shutil.rmtree(directory / "index")
        assert run("build", directory, kill_at) == -signal.SIGKILL
        if not (directory / "index").exists():
            _build(directory)
            assert hidden(directory) == [], kill_at
        assert Index.open(directory / "index").manifest.version == expected, kill_at


def kill_publish(directory: Path, count: int, seed: int, make_two_tower: Callable) -> None:
    """Publish a second version over a first one; whatever survives is a whole release."""
    _build(directory)
    store = DirectoryStore(directory / "store")
    first = _publish(directory)
    for name in ("two_tower", "index"):
        shutil.rmtree(directory / name)
    make_two_tower(directory / "two_tower", seed=7)
    _build(directory)
    shutil.copytree(directory / "store", directory / "before")
    num_steps = run("publish", directory)
    second = store.current("shopping")
    assert second is not None
    for kill_at in moments(num_steps, count, seed):
        shutil.rmtree(directory / "store")
        shutil.copytree(directory / "before", directory / "store")
        assert run("publish", directory, kill_at) == -signal.SIGKILL
        survivor = store.current("shopping")
        assert survivor is not None
        assert (survivor.two_tower, survivor.index) in {
            (first.two_tower, first.index),
            (second.two_tower, second.index),
        }
        _check_all(store)
        again = _publish(directory)
        assert store.current("shopping") == again
        assert (again.two_tower, again.index) == (second.two_tower, second.index), kill_at
        _check_all(store)
        assert hidden(directory) == [], kill_at


def _build(directory: Path) -> None:
    build_index(
        ads=directory / "ads",
        two_tower=directory / "two_tower",
        heavy=directory / "heavy",
        out=directory / "index",
        config=IndexConfig(threads=1, batch_size=16, checkpoint_ads=32, engine="onnxruntime_cpu"),
    )


def _publish(directory: Path) -> Release:
    parts = {name: directory / name for name in ("two_tower", "heavy", "index")}
    return DirectoryStore(directory / "store").publish(**parts)


def _check_all(store: DirectoryStore) -> None:
    for release in store.list("shopping"):
        paths = store.paths(release)
        assert open_bundle(paths.two_tower).manifest.version == Index.open(paths.index).manifest.two_tower
        assert paths.heavy is not None
        open_bundle(paths.heavy)


def test_a_killed_build_is_never_half_there(directory: Path) -> None:
    kill_build(directory, count=2, seed=0)


def test_a_killed_publish_leaves_a_whole_release(directory: Path, make_two_tower: Callable) -> None:
    kill_publish(directory, count=2, seed=0, make_two_tower=make_two_tower)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_build_killed_at_many_moments(directory: Path) -> None:
    kill_build(directory, count=20, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_publish_killed_at_many_moments(directory: Path, make_two_tower: Callable) -> None:
    kill_publish(directory, count=20, seed=1, make_two_tower=make_two_tower)
