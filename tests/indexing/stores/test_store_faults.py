"""Whatever happens to a store while it is changed, it serves a whole, matching release, and the next run succeeds.

A change is made in a forked process, which kills itself (SIGKILL) just before its n-th step on the file system; every n
is tried. A full disk is a flush that fails, at every n too.
"""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from contracts.errors import ArtifactError
from contracts.release import Release
from indexing.store import DirectoryStore
from indexing.store_files import Pointer, verified_parts

CHANGES = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
Change = Callable[[DirectoryStore], object]


@pytest.fixture
def before(parts: Path, tmp_path: Path) -> Path:
    """A store with three releases of two models, the first one pinned: a third model's parts wait to be published."""
    store = DirectoryStore(tmp_path / "before")
    for prefix in ("", "other_", "other_"):
        publish(store, parts, prefix)
    store.pin("shopping", store.names("shopping")[1])
    return tmp_path / "before"


def publish(store: DirectoryStore, parts: Path, prefix: str = "") -> Release:
    return store.publish(two_tower=parts / f"{prefix}two_tower", heavy=parts / "heavy", index=parts / f"{prefix}index")


def changes(parts: Path, pointer: Pointer) -> dict[str, Change]:
    return {
        "publish": lambda store: publish(store, parts, "third_"),
        "rollback": lambda store: store.rollback("shopping", pointer.history[0]),
        "pin": lambda store: store.pin("shopping", pointer.history[0]),
        "prune": lambda store: store.prune(1),
    }


def check_whole(store: DirectoryStore) -> None:
    """What serves and what a rollback can reach opens, verified, and its parts belong together."""
    assert store.current("shopping") is not None
    for release in store.list("shopping"):
        paths = store.paths(release)
        found = verified_parts(paths.two_tower, paths.heavy, paths.index)
        assert (found.two_tower.version, found.index.version) == (release.two_tower, release.index)


def hidden(root: Path) -> list[str]:
    return [path.name for path in root.rglob(".*") if path.name != ".lock"]


def forked(change: Change, root: Path, kill_at: int) -> int:
    """Make a change in a process of its own that dies before its ``kill_at``-th step; its signal or exit code."""
    child = os.fork()
    if child == 0:
        steps = 0

        def count(event: str, arguments: tuple) -> None:
            nonlocal steps
            if event in CHANGES or (event == "open" and set(str(arguments[1])) & set("wa+x")):
                steps += 1
                if steps == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        code = 1
        try:
            change(DirectoryStore(root))
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("name", ["publish", "rollback", "pin", "prune"])
def test_a_change_killed_at_any_step(parts: Path, before: Path, tmp_path: Path, name: str) -> None:
    pointer = DirectoryStore(before).pointer("shopping")
    assert pointer is not None
    change = changes(parts, pointer)[name]
    shutil.copytree(before, tmp_path / "after")
    change(DirectoryStore(tmp_path / "after"))
    expected = DirectoryStore(tmp_path / "after").pointer("shopping")
    assert expected is not None
    root, store, kill_at = tmp_path / "store", DirectoryStore(tmp_path / "store"), 0
    while True:
        kill_at += 1
        shutil.copytree(before, root)
        status = forked(change, root, kill_at)
        assert status in (0, signal.SIGKILL), kill_at
        check_whole(store)
        found = store.pointer("shopping")
        assert found is not None
        assert found in (pointer, expected) or (name == "publish" and found.history == expected.history), kill_at
        change(store)
        check_whole(store)
        again = store.pointer("shopping")
        assert again is not None
        assert again.pinned == expected.pinned, kill_at
        assert again == expected or name == "publish", kill_at
        assert sorted(os.listdir(root / "indexes")) == sorted(os.listdir(tmp_path / "after" / "indexes")), kill_at
        assert hidden(root) == [], kill_at
        shutil.rmtree(root)
        if status == 0:
            break
    assert kill_at > 4


@pytest.mark.parametrize("name", ["publish", "rollback", "pin", "prune"])
def test_a_disk_that_is_full_at_any_flush(
    parts: Path, before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pointer = DirectoryStore(before).pointer("shopping")
    assert pointer is not None
    change, real = changes(parts, pointer)[name], os.fsync
    full_at, flushes = 0, 0

    def fsync(handle: int) -> None:
        nonlocal flushes
        flushes += 1
        if flushes == full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    root, store = tmp_path / "store", DirectoryStore(tmp_path / "store")
    is_full, found = True, None
    while is_full:
        full_at, flushes = full_at + 1, -(10**9)
        shutil.copytree(before, root)
        flushes = 0
        try:
            change(store)
            is_full = False
        except OSError as error:
            found = error.errno
        assert is_full is False or found == errno.ENOSPC
        flushes = -(10**9)  # there is room again
        check_whole(store)
        change(store)
        check_whole(store)
        assert hidden(root) == [], full_at
        shutil.rmtree(root)
    assert full_at > 2


def damaged(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return content[: rng.randrange(len(content))]
    at, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
    return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_pointer_never_serves_another_release_and_the_next_publish_restores_it(
    parts: Path, before: Path, seed: int
) -> None:
    store = DirectoryStore(before)
    pointer, current = store.pointer("shopping"), store.current("shopping")
    assert pointer is not None
    path = before / "current" / "shopping.json"
    path.write_bytes(damaged(path.read_bytes(), random.Random(seed)))
    try:
        found = store.current("shopping")
    except ArtifactError:
        found = current
    assert found == current
    release = publish(store, parts, "third_")
    assert store.current("shopping") == release
    assert set(store.names("shopping")[1:]) <= set(pointer.names)
    assert len(store.names("shopping")) > len(pointer.names) - 1  # a release whose name was altered is left out
    check_whole(store)


def test_a_pointer_that_cannot_be_read_names_the_way_out_and_its_copy_restores_it(
    before: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DirectoryStore(before)
    pointer = store.pointer("shopping")
    assert pointer is not None
    (before / "current" / "shopping.json").write_text('{"release"')
    with pytest.raises(ArtifactError, match=r"shopping\.json.*index rollback --scenario shopping --to RELEASE"):
        store.current("shopping")
    with pytest.raises(ArtifactError, match=r"shopping\.json"):  # nobody knows what serves
        store.prune(1)
    assert len(os.listdir(before / "indexes")) == 2
    store.rollback("shopping", pointer.release)
    assert store.pointer("shopping") == pointer
    assert "DAMAGED STORE" in caplog.text


def test_a_copy_that_is_ahead_of_a_move_that_failed_restores_what_is_whole(parts: Path, before: Path) -> None:
    store = DirectoryStore(before)
    old = (before / "current" / "shopping.json").read_bytes()
    publish(store, parts, "third_")
    (before / "current" / "shopping.json").write_bytes(old)  # as if the disk had been full for this file
    names = list(store.names("shopping"))
    assert len(store.prune(3).indexes) == 1
    (before / "current" / "shopping.json").write_text("")
    store.pin("shopping", names[1])
    assert list(store.names("shopping")) == names
    check_whole(store)


def test_without_its_copy_a_pointer_is_rebuilt_from_the_records(
    parts: Path, before: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DirectoryStore(before)
    names = list(store.names("shopping"))
    for folder in ("current", "copies"):
        (before / folder / "shopping.json").write_text("")
    release = publish(store, parts, "third_")
    assert list(store.names("shopping")) == [release.release_id, *names]
    assert release.previous == names[0]
    assert "must be pinned again" in caplog.text.replace("\n", " ")


def test_a_lost_record_is_left_out_by_the_next_publish(parts: Path, before: Path) -> None:
    store = DirectoryStore(before)
    names = list(store.names("shopping"))
    (before / "releases" / "shopping" / f"{names[0]}.json").write_text("{")
    with pytest.raises(ArtifactError, match=names[0]):
        store.current("shopping")
    with pytest.raises(ArtifactError, match="nothing was removed"):
        store.prune(1)
    release = publish(store, parts, "third_")
    assert list(store.names("shopping")) == [release.release_id, *names[1:]]
    check_whole(store)


class _Clock(datetime):
    """Every reading is a day before the last."""

    readings = 0

    @classmethod
    def now(cls, tz: object = None) -> datetime:
        cls.readings += 1
        return datetime.fromtimestamp(1_790_000_000 - 86_400 * cls.readings, UTC)


def test_a_clock_that_moves_back_changes_no_order(parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexing.store_files.datetime", _Clock)
    store = DirectoryStore(tmp_path / "store")
    ids = [publish(store, parts, prefix).release_id for prefix in ("", "other_", "", "third_")]
    assert ids == sorted(ids, reverse=True)  # by their times
    assert list(store.names("shopping")) == ids[::-1]
    assert store.rollback("shopping").release_id == ids[2]
    for folder in ("current", "copies"):
        (tmp_path / "store" / folder / "shopping.json").write_text("")
    assert publish(store, parts).previous == ids[3]  # published last, whatever its time says
    store.prune(2)
    assert list(store.names("shopping"))[1:] == [ids[3]]


MANY = """
import sys
from pathlib import Path
from indexing.store import DirectoryStore
root, parts, job = sys.argv[1:]
store = DirectoryStore(Path(root))
for number in range(1_000_000 if job == "all" else 8):
    if job == "prune" or (job == "all" and number % 3 == 1):
        store.prune(1 + number % 2)
    elif job == "all" and number % 3 == 2:
        if len(store.names("shopping")) > 1:
            store.rollback("shopping")
        store.pin("shopping", store.names("shopping")[0])
        if number % 2:
            store.unpin("shopping", store.names("shopping")[0])
    else:
        prefix = ("", "other_", "third_")[number % 3] if job == "all" else job
        store.publish(
            two_tower=Path(parts, prefix + "two_tower"), heavy=Path(parts, "heavy"), index=Path(parts, prefix + "index")
        )
"""


def test_two_publishers_and_a_pruner_at_once(parts: Path, before: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", MANY, str(before), str(parts), job], stderr=subprocess.PIPE)
        for job in ("third_", "other_", "prune")
    ]
    outcomes = [(process.communicate()[1], process.returncode) for process in processes]
    assert [code for _, code in outcomes] == [0, 0, 0], outcomes
    check_whole(DirectoryStore(before))
    assert not hidden(before)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_killed_at_random_moments(parts: Path, before: Path) -> None:
    """Twenty times, a process that publishes, prunes, rolls back and pins for ever is killed from outside."""
    rng, store = random.Random(0), DirectoryStore(before)
    for kill in range(20):
        process = subprocess.Popen([sys.executable, "-c", MANY, str(before), str(parts), "all"])
        time.sleep(0.6 + rng.random())
        assert process.poll() is None, kill
        process.kill()
        process.wait()
        check_whole(store)
        publish(store, parts, "third_")
        check_whole(store)
        store.prune(3)
        check_whole(store)
        assert hidden(before) == [], kill


@pytest.mark.slow
def test_a_small_disk_fills_up(parts: Path, tmp_path: Path) -> None:
    """On a tmpfs with room for half a release more: the second publish fails and the first release serves on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        store = DirectoryStore(disk / "store")
        first = publish(store, parts)
        used = shutil.disk_usage(disk).used
        subprocess.run(["mount", "-o", f"remount,size={used * 5 // 4}", disk], check=True)
        with pytest.raises(OSError, match="No space left"):
            publish(store, parts, "other_")
        assert store.list("shopping") == [first]
        check_whole(store)
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        second = publish(store, parts, "other_")
        assert store.list("shopping") == [second, first]
        check_whole(store)
        assert not hidden(disk)
    finally:
        subprocess.run(["umount", disk], check=True)
