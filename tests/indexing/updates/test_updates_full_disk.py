"""A disk that is really full, a small tmpfs: nothing that was taken is lost, and all goes on once there is room."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import AdsieveError
from indexing.compaction import compact
from indexing.overlay_stops import Stops
from indexing.stores import open_store
from indexing.update_log import UpdateLog
from indexing.update_record import Update

ROOT = Path(__file__).parents[3]
LATER = 3 * 10**15
MIB = 1 << 20


@pytest.fixture
def small_disk() -> Iterator[Callable[..., Path]]:
    """Mounts a tmpfs of a few MiB at a path, or skips."""
    mounted: list[Path] = []

    def mount(path: Path, mib: int) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
        done = subprocess.run(command, capture_output=True, text=True) if shutil.which("mount") else None
        if done is None or done.returncode:
            pytest.skip("mounting a tmpfs needs root: " + (done.stderr.strip() if done else "no mount"))
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path, *, left: int = 0) -> Path:
    """Fill a disk but for some bytes; removing the file that is returned makes room."""
    free = os.statvfs(disk)
    filler = disk / "filler"
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - left)
    return filler


def news(content: Any, count: int, first: int = 0) -> list[Update]:
    return [
        Update(ad_id=f"new-{number}", at=0, bid=1.0, content=content(price=float(number), valid_from=LATER + number))
        for number in range(first, first + count)
    ]


@pytest.mark.slow
def test_an_overlay_on_a_full_disk_has_states_in_effect_and_content_waits(
    new_day: Any, content: Any, rules: Any, small_disk: Callable[..., Path], tmp_path: Path
) -> None:
    disk = small_disk(tmp_path / "overlay", 16)
    day = new_day(tmp_path)
    day._writer = day.new_writer(capacity=20_000)
    ids = list(day.built.catalogue)
    said = [*news(content, 10), Update(ad_id=ids[1], at=0, bid=3.0)]
    live = day.after(*said)
    filler = fill(disk)
    more = [*news(content, 9_000, first=10), Update(ad_id=ids[0], at=0, takedown=True)]
    day.log.append(more)
    for _ in range(2):
        with pytest.raises(AdsieveError, match=r"No space left on device"):
            day.apply()
        assert live.servable(live.lookup(ids[:1])).tolist() == [False], "a takedown needs no room"
    names = [*ids, *(f"new-{number}" for number in range(9_010))]
    found = live.lookup(names[len(ids) :])
    assert (found[:10] >= 0).all()
    assert (found >= 0).sum() < 9_010
    day.restart()
    with pytest.raises(AdsieveError, match="No space left on device"):
        day.apply()
    filler.unlink()
    day.apply()
    for opened in (live, day.open()):
        assert rules.seen(opened, names) == rules.wanted(rules.expected(day.built.catalogue, said + more))
    day.close()


@pytest.mark.slow
def test_an_overlay_that_cannot_be_begun_leaves_nothing_and_is_begun_once_there_is_room(
    new_day: Any, small_disk: Callable[..., Path], tmp_path: Path
) -> None:
    disk = small_disk(tmp_path / "overlay", 16)
    day = new_day(tmp_path)
    day.log.append([Update(ad_id=next(iter(day.built.catalogue)), at=0, takedown=True)])
    filler = fill(disk, left=100_000)
    for _ in range(3):
        with pytest.raises(AdsieveError, match="No space left on device"):
            day.new_writer(capacity=20_000)
    filler.unlink()
    assert day.after().position == day.log.end
    assert len(list(disk.glob("g-*"))) == 1, "what was begun in vain is gone"
    day.close()


@pytest.mark.slow
def test_what_a_host_keeps_of_takedowns_waits_for_room_while_they_are_in_effect(
    new_day: Any, small_disk: Callable[..., Path], tmp_path: Path
) -> None:
    disk = small_disk(tmp_path / "stops", 1)
    day = new_day(tmp_path)
    ids = list(day.built.catalogue)
    live = day.after(Update(ad_id=ids[0], at=0, takedown=True))
    filler = fill(disk)
    # more than the rest of a block that the first one takes
    day.log.append([Update(ad_id=f"unknown-{number}-{'x' * 100}", at=0, takedown=True) for number in range(100)])
    day.log.append([Update(ad_id=ids[1], at=0, takedown=True)])
    with pytest.raises(AdsieveError, match="No space left on device"):
        day.apply()
    assert not live.servable(live.lookup(ids[:2])).any()
    filler.unlink()
    day.apply()
    held = {update.ad_id for update in Stops(disk).held(None).updates()}
    assert {*ids[:2], f"unknown-99-{'x' * 100}"} <= held
    day.close()


def update(store: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "adsieve", "index", "update", *arguments, "--store", str(store)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_the_command_on_a_full_disk_takes_nothing_says_so_and_loses_nothing(
    built: Any, small_disk: Callable[..., Path], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    open_store(store).publish(two_tower=built.two_tower.path, heavy=built.heavy.path, index=built.path)
    disk = small_disk(store / "updates", 2)
    log = UpdateLog(disk)
    taken = 0
    lot = tmp_path / "lot.jsonl"
    lot.write_text("".join(f'{{"ad_id": "ad-{number}", "bid": 1}}\n' for number in range(2_000)))
    code, errors = update(store, "--takedown", "ad-1")
    assert code == 0, errors
    filler = fill(disk, left=300_000)
    while code == 0:
        code, errors = update(store, str(lot))
        taken += 2_000 if code == 0 else 0
    assert code == 1
    assert "no update was taken: No space left on device" in errors
    whole = list(UpdateLog(disk).read())
    assert len(whole) == taken + 1
    assert whole[0].takedown is True
    with pytest.raises(AdsieveError, match="No space left on device"):
        compact(log, [log.end])
    assert list(UpdateLog(disk).read()) == whole
    filler.unlink()
    assert update(store, "--restore", "ad-1")[0] == 0
    *before, last = UpdateLog(disk).read()
    assert before == whole
    assert (last.takedown, last.seq > whole[-1].seq) == (False, True)
    assert compact(log, [log.end]).before == taken + 2


@pytest.mark.slow
def test_a_log_that_cannot_be_begun_on_a_full_disk_is_begun_once_there_is_room(
    small_disk: Callable[..., Path], tmp_path: Path
) -> None:
    disk = small_disk(tmp_path / "updates", 1)
    filler = fill(disk)
    for _ in range(2):
        with pytest.raises((AdsieveError, OSError), match="No space left on device"):
            UpdateLog(disk).append([Update(ad_id="a", at=0, takedown=True)])
    filler.unlink()
    assert UpdateLog(disk).append([Update(ad_id="a", at=0, takedown=True)]).seq >= 1
    assert [one.ad_id for one in UpdateLog(disk).read()] == ["a"]
    assert sum(path.stat().st_size for path in disk.iterdir()) < MIB
