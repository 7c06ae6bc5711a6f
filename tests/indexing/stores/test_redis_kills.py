"""A job killed at any moment, or a Redis that dies under it, leaves whole releases, and the next run succeeds.

A job runs in a process of its own, which kills itself (SIGKILL) just before its n-th change to the file system or its
n-th message to Redis, whichever comes as the n-th of both. A dry run counts them; n is drawn at random.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from contracts.bundle import open_bundle
from contracts.release import Release
from indexing.index import Index
from indexing.redis_connect import RedisError
from indexing.redis_parts import part_names, read_mark
from indexing.redis_store import RedisStore
from indexing.stores import Store
from indexing.update_record import Update

JOB = """
import os, signal, sys
from pathlib import Path
import redis.connection
from indexing.redis_store import RedisStore
from indexing.update_record import Update

job, kill_at, url, mirror, parts = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), Path(sys.argv[5])
CHANGES = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
steps = 0

def step():
    global steps
    steps += 1
    if steps == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

def count(event, arguments):
    if event in CHANGES or (event == "open" and set(str(arguments[1])) & set("wa+x")):
        step()

send = redis.connection.AbstractConnection.send_packed_command

def counted(self, command, check_health=True):
    step()
    return send(self, command, check_health)

redis.connection.AbstractConnection.send_packed_command = counted
store = RedisStore(url, mirror, grace_s=0.0)
sys.addaudithook(count)
if job == "publish":
    store.publish(two_tower=parts / "other_two_tower", heavy=parts / "heavy", index=parts / "other_index")
elif job == "pull":
    store.refresh()
elif job == "update":
    store.append_updates([Update(ad_id=f"ad-{number}", at=number, takedown=True) for number in range(5)])
elif job == "prune":
    store.prune(1)
print(steps)
"""


@dataclass
class World:
    """A server and mirrors that can be put back to how they were."""

    server: object
    directory: Path
    parts: Path
    publish: Callable[..., Release]

    def store(self, name: str) -> RedisStore:
        return RedisStore(self.server.url, self.directory / name, grace_s=0.0)  # type: ignore[attr-defined]

    @property
    def client(self) -> redis.Redis:
        return self.server.client  # type: ignore[attr-defined]

    def save(self) -> None:
        self.saved = {key: self.client.dump(key) for key in self.client.scan_iter("*")}
        shutil.copytree(self.directory, self.directory.with_name("saved"), dirs_exist_ok=True)

    def restore(self) -> None:
        self.client.flushall()
        self.client.script_flush()
        for key, content in self.saved.items():
            self.client.restore(key, 0, content)
        shutil.rmtree(self.directory)
        shutil.copytree(self.directory.with_name("saved"), self.directory)

    def run(self, job: str, kill_at: int = 0) -> int:
        """Run a job in the mirror ``worker``; return how many steps it made, or -SIGKILL."""
        url, mirror = self.server.url, self.directory / "worker"  # type: ignore[attr-defined]
        command = [sys.executable, "-c", JOB, job, str(kill_at), url, str(mirror), str(self.parts)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        if result.returncode == -signal.SIGKILL:
            return -signal.SIGKILL
        assert result.returncode == 0, result.stderr
        return int(result.stdout)

    def orphans(self) -> set[bytes]:
        """Chunks that belong to no part, once the leases of dead publishers have run out."""
        for lease in self.client.scan_iter("{adsieve}:lease:*"):
            self.client.delete(lease)
        store = self.store("sweeper")
        store.refresh()
        store.prune(10)
        owned = set()
        for release in store.list("shopping"):
            for part in part_names(release):
                mark = read_mark(store._connection, part)
                assert mark is not None
                owned |= {chunk.key.encode() for chunk in mark.chunks(part)}
        return set(self.client.scan_iter("{adsieve}:chunk:*")) - owned


@pytest.fixture
def world(server: object, tmp_path: Path, parts: Path, publish: Callable[..., Release]) -> World:
    (tmp_path / "world").mkdir()
    return World(server, tmp_path / "world", parts, publish)


def check_whole(store: Store) -> Release:
    release = store.current("shopping")
    assert release is not None
    paths = store.local.paths(release)
    index = Index.open(paths.index).manifest
    assert open_bundle(paths.two_tower).manifest.version == release.two_tower == index.two_tower
    assert index.version == release.index
    assert paths.heavy is not None
    open_bundle(paths.heavy)
    return release


def kill(world: World, job: str, count: int, seed: int) -> None:
    """The worker's job is killed; a follower looks on, and both end where the job ends that nobody kills."""
    if job == "pull":
        world.publish(world.store("worker"))
        world.publish(world.store("other"), "other_")
        world.store("other").append_updates([Update(ad_id="a", at=1, takedown=True), Update(ad_id="b", at=1, bid=1.0)])
    else:
        world.publish(world.store("worker"))
        if job == "prune":
            world.publish(world.store("worker"), "third_")
    world.store("follower").refresh()
    world.save()
    num_steps = world.run(job)
    expected = check_whole(world.store("worker"))
    moments = random.Random(seed).sample(range(1, num_steps + 1), min(count, num_steps))
    for kill_at in moments:
        world.restore()
        assert world.run(job, kill_at) == -signal.SIGKILL
        worker, follower = world.store("worker"), world.store("follower")
        check_whole(worker)
        follower.refresh()
        check_whole(follower)
        world.run(job)
        follower.refresh()
        for store in (worker, follower):
            release = check_whole(store)
            assert (release.two_tower, release.index) == (expected.two_tower, expected.index), kill_at
        assert worker.list("shopping") == follower.list("shopping")
        updates = list(worker.update_log().read())
        assert updates == list(follower.update_log().read())
        assert [update.seq for update in updates] == list(range(1, len(updates) + 1))
        if job == "update":
            assert [update.ad_id for update in updates[-5:]] == [f"ad-{number}" for number in range(5)]
        if job == "prune":
            assert worker.list("shopping") == [expected]
            assert [path.name for path in worker.root.glob("indexes/*")] == [expected.index]
        if job == "pull":
            assert [update.ad_id for update in updates] == ["a", "b"]
        assert world.orphans() == set(), kill_at
        assert not list(worker.root.glob("pulls/*")), kill_at


def fail(world: World, count: int, seed: int, happen: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Something happens to Redis at a moment of a publish: it succeeds or says so, nobody loses, the next succeeds."""
    world.publish(world.store("worker"))
    world.store("follower").refresh()
    world.save()
    original = redis.connection.AbstractConnection.send_packed_command
    state = {"steps": 0, "at": 0}

    def counted(self: object, *arguments: object, **options: object) -> object:
        state["steps"] += 1
        if state["steps"] == state["at"]:
            happen()
        return original(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", counted)
    other = world.publish(world.store("worker"), "other_").two_tower
    num_steps = state["steps"]
    for at in random.Random(seed).sample(range(1, num_steps + 1), min(count, num_steps)):
        state["at"] = 0
        world.restore()
        worker, follower = world.store("worker"), world.store("follower")
        before = check_whole(follower)
        state.update(steps=0, at=at)
        with suppress(RedisError):
            world.publish(worker, "other_")
        state["at"] = 0
        with suppress(RedisError):
            follower.refresh()
        assert check_whole(follower).two_tower in {before.two_tower, other}
        world.server.start()  # type: ignore[attr-defined]
        again = world.publish(worker, "other_")
        follower.refresh()
        assert check_whole(follower) == again
        newcomer = world.store("newcomer")
        newcomer.refresh()
        assert newcomer.list("shopping") == worker.list("shopping") == follower.list("shopping")
        assert before in newcomer.list("shopping")


@pytest.mark.parametrize("job", ["publish", "pull", "update", "prune"])
def test_a_killed_job_leaves_whole_releases(world: World, job: str) -> None:
    kill(world, job, count=1, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("job", ["publish", "pull", "update", "prune"])
def test_a_job_killed_at_many_moments(world: World, job: str) -> None:
    kill(world, job, count=20, seed=1)


def test_redis_comes_back_empty_during_a_publish(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(world, 2, 0, world.server.empty, monkeypatch)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("happening", ["empty", "stop"])
def test_redis_fails_at_many_moments_of_a_publish(
    world: World, happening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(world, 20, 1, getattr(world.server, happening), monkeypatch)
