"""Builds in real processes: killed at any time, on a full disk, twice at once; damaged files; a clock that moved."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import AdsieveError, ArtifactError, LogError
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.nightly import build_index

NUM_ADS = 60_000
CONFIG = "precision: fp32\nengine: onnxruntime_cpu\nbatch_size: 256\nthreads: 1\ncheckpoint_ads: 2048\n"
SETTINGS = IndexConfig(precision="fp32", engine="onnxruntime_cpu", batch_size=256, threads=1, checkpoint_ads=2048)


@pytest.fixture(scope="module")
def many_ads(tmp_path_factory: pytest.TempPathFactory, ads_table: Callable[..., pa.Table]) -> Path:
    directory = tmp_path_factory.mktemp("many")
    for part in range(2):
        ids = [f"ad-{number}" for number in range(part * NUM_ADS, (part + 1) * NUM_ADS)]
        pq.write_table(ads_table(NUM_ADS, part, ad_id=ids), directory / f"{part}.parquet", row_group_size=20_000)
    return directory


@pytest.fixture
def command(bundles: Path, tmp_path: Path) -> Callable[..., list[str]]:
    (tmp_path / "config.yaml").write_text(CONFIG)

    def make(ads: Path, out: Path) -> list[str]:
        parts = ["--two-tower", bundles / "two_tower", "--heavy", bundles / "heavy"]
        arguments = ["index", "build", "--ads", ads, *parts, "--out", out, "--config", tmp_path / "config.yaml"]
        return [sys.executable, "-m", "adsieve", *map(str, arguments)]

    return make


def run(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **more)


def files(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in ("READY", "manifest.json")
    }


def hidden(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_build_killed_twenty_times_from_outside_makes_the_same_index(
    many_ads: Path, command: Callable, tmp_path: Path
) -> None:
    begin = time.monotonic()
    assert run(command(many_ads, tmp_path / "unbroken")).returncode == 0
    took = time.monotonic() - begin
    expected = files(tmp_path / "unbroken")
    rng, kills, resumed = random.Random(0), 0, 0
    while kills < 20:
        process = subprocess.Popen(command(many_ads, tmp_path / "index"), stderr=subprocess.PIPE, text=True)
        try:
            process.wait(rng.uniform(0.2, 1) * took)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        resumed += "resuming at" in process.communicate()[1]
        if (tmp_path / "index").exists():
            assert files(tmp_path / "index") == expected
            shutil.rmtree(tmp_path / "index")
    finished = run(command(many_ads, tmp_path / "index"))
    assert finished.returncode == 0, finished.stderr
    assert files(tmp_path / "index") == expected
    assert resumed > 0
    assert hidden(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_two_builds_at_once_the_second_is_refused_and_a_dead_one_blocks_nobody(
    many_ads: Path, command: Callable, tmp_path: Path
) -> None:
    first = subprocess.Popen(command(many_ads, tmp_path / "index"), stderr=subprocess.DEVNULL)
    while not (tmp_path / ".index.work" / "inputs.json").exists():
        assert first.poll() is None
        time.sleep(0.01)
    second = run(command(many_ads, tmp_path / "index"))
    assert second.returncode == 2
    assert "another process is making it now" in second.stderr
    first.kill()
    first.wait()
    assert run(command(many_ads, tmp_path / "index")).returncode == 0
    assert len(Index.open(tmp_path / "index")) > NUM_ADS


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a file system of so many bytes, or resizes it; that needs root."""
    path = tmp_path / "disk"
    path.mkdir()

    def resize(size: int) -> Path:
        options = f"{'remount,' if path.is_mount() else ''}size={size // 4096 * 4096}"
        mounted = run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]) if shutil.which("mount") else None
        if mounted is None or mounted.returncode:
            pytest.skip("mounting a tmpfs needs root: " + (mounted.stderr.strip() if mounted else "no mount"))
        return path

    yield resize
    if path.is_mount():
        run(["umount", str(path)])


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.75, 0.85, 0.95, 1.0])
def test_a_full_disk_is_told_and_a_later_run_goes_on(
    many_ads: Path, command: Callable, tmp_path: Path, disk: Callable[[int], Path], share: float
) -> None:
    """The disk holds a share of what the index takes, so that it is full at another step each time."""
    assert run(command(many_ads, tmp_path / "unbroken")).returncode == 0
    expected = files(tmp_path / "unbroken")
    whole = sum(map(len, expected.values()))
    out = disk(int(share * whole)) / "index"
    refused = run(command(many_ads, out))
    assert refused.returncode == 1, refused.stderr
    assert "no space left on the disk" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not out.exists()
    disk(2 * whole)
    again = run(command(many_ads, out))
    assert again.returncode == 0, again.stderr
    assert ("resuming at" in again.stderr) == (share >= 0.5)
    assert files(out) == expected


@pytest.mark.slow
@pytest.mark.parametrize("limit", [20_000, 100_000, 700_000, 2_000_000])
def test_a_file_that_may_not_grow_is_a_full_disk(many_ads: Path, command: Callable, tmp_path: Path, limit: int) -> None:
    """Runs everywhere: the system refuses bytes beyond a limit of the process, as a full disk does."""

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    refused = run(command(many_ads, tmp_path / "index"), preexec_fn=limited)
    assert refused.returncode == 1, refused.stderr
    assert "no space left on the disk" in refused.stderr
    assert not (tmp_path / "index").exists()
    assert run(command(many_ads, tmp_path / "index")).returncode == 0
    assert run(command(many_ads, tmp_path / "unbroken")).returncode == 0
    assert files(tmp_path / "index") == files(tmp_path / "unbroken")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def build(ads: Path, bundles: Path, out: Path) -> None:
    build_index(ads=ads, two_tower=bundles / "two_tower", heavy=bundles / "heavy", out=out, config=SETTINGS)


def test_damaged_ads_stop_the_build_or_make_a_whole_index(
    ads_table: Callable[..., pa.Table], bundles: Path, tmp_path: Path
) -> None:
    """A flipped bit that Parquet cannot see may change a value; no half index, no foreign error."""
    (tmp_path / "ads").mkdir()
    path = tmp_path / "ads" / "a.parquet"
    pq.write_table(ads_table(300), path, row_group_size=64, write_page_checksum=True)
    whole, rng, refused = path.read_bytes(), random.Random(0), []
    for round_ in range(24):
        path.write_bytes(whole)
        if round_ % 4 == 0:
            os.truncate(path, rng.randrange(len(whole)))
        else:
            flip(path, rng.randrange(len(whole)))
        out = tmp_path / f"index-{round_}"
        try:
            build(tmp_path / "ads", bundles, out)
        except LogError as error:
            refused.append(str(error))
            assert not out.exists()
        else:
            Index.open(out)
        assert hidden(tmp_path) == []
    assert len(refused) >= 6
    assert all(str(path) in message for message in refused)


def test_a_flipped_bit_of_an_index_is_found_in_every_file(ads: Path, bundles: Path, tmp_path: Path) -> None:
    build(ads, bundles, tmp_path / "index")
    rng = random.Random(0)
    for path in sorted(path for path in (tmp_path / "index").rglob("*") if path.is_file()):
        whole = path.read_bytes()
        for damage in ("flip", "truncate"):
            if not whole:
                continue
            flip(path, rng.randrange(len(whole))) if damage == "flip" else os.truncate(path, len(whole) // 2)
            with pytest.raises((ArtifactError, AdsieveError)):
                Index.open(tmp_path / "index")
            path.write_bytes(whole)
    assert len(Index.open(tmp_path / "index")) == 160


@pytest.mark.parametrize("now_s", [0.0, 4e9])
def test_a_clock_that_is_wrong_changes_no_file(
    ads: Path, bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now_s: float
) -> None:
    build(ads, bundles, tmp_path / "now")
    clock = {"time": lambda: now_s, "time_ns": lambda: int(now_s) * 10**9}
    for name, moved in clock.items():
        monkeypatch.setattr(time, name, moved)
    build(ads, bundles, tmp_path / "then")
    assert files(tmp_path / "then") == files(tmp_path / "now")
    one, other = (Index.open(tmp_path / name).manifest for name in ("now", "then"))
    if now_s:  # rows that lie ahead today do not then
        assert one.watermark < other.watermark
        assert not any("more than a day ahead" in warning for warning in other.warnings)
    else:  # all rows seem to come from the future, which is told
        assert other.watermark.startswith("1970-01-01")
        assert any("more than a day ahead" in warning for warning in other.warnings)
    assert np.isfinite(Index.open(tmp_path / "then").vectors).all()
