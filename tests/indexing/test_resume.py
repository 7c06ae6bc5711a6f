"""A build that was interrupted goes on, and makes byte by byte what an unbroken one makes."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import AdsieveError, InputError, LogError
from indexing import numbering
from indexing.catalog import input_files
from indexing.config import IndexConfig
from indexing.embed import EmbeddedBatch
from indexing.index import Index
from indexing.nightly import Built, run_build
from indexing.pipeline import embed_batches
from indexing.work_directory import work_directory

BATCH = 16


class KilledError(Exception):
    """Stands for a process that ends between two batches."""


def build(ads: Path, bundles: Path, out: Path, *, kill_after: int | None = None, error=KilledError, **config) -> Built:
    """Build, and stop after so many batches of this run."""

    def embed(*arguments) -> Iterator[EmbeddedBatch]:
        for number, batch in enumerate(embed_batches(*arguments)):
            if number == kill_after:
                raise error
            yield batch

    settings = {"threads": 1, "batch_size": BATCH, "checkpoint_ads": 2 * BATCH, "engine": "onnxruntime_cpu", **config}
    return run_build(
        ads=ads,
        two_tower=bundles / "two_tower",
        heavy=bundles / "heavy",
        out=out,
        config=IndexConfig(**settings),
        embed=embed,
    )


def content(directory: Path) -> dict[str, bytes]:
    """All files of an index; of its manifest and READY, what does not tell the time."""
    found = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    manifest = json.loads(found.pop("manifest.json").read_bytes())
    del manifest["created_at"]
    del found["READY"]
    return {name: path.read_bytes() for name, path in found.items()} | {"manifest.json": json.dumps(manifest).encode()}


def work(out: Path) -> Path:
    return out.with_name(f".{out.name}.work")


@pytest.mark.parametrize("kill_after", [0, 1, 2, 3, 5, 7, 9])
def test_an_interrupted_build_goes_on_and_makes_the_same_index(
    ads: Path, bundles: Path, tmp_path: Path, kill_after: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(ads, bundles, tmp_path / "unbroken").num_resumed == 0
    with pytest.raises(KilledError):
        build(ads, bundles, tmp_path / "index", kill_after=kill_after)
    assert not (tmp_path / "index").exists()
    capsys.readouterr()
    resumed = build(ads, bundles, tmp_path / "index").num_resumed
    assert (resumed == 0) == (kill_after < 2)
    said = f"resuming at {resumed} of 160 ads"
    assert (said in capsys.readouterr().err) == (resumed > 0)
    assert content(tmp_path / "index") == content(tmp_path / "unbroken")
    assert not work(tmp_path / "index").exists()


def test_a_build_may_be_interrupted_again_and_again(
    ads: Path, bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(ads, bundles, tmp_path / "unbroken")
    monkeypatch.setattr(numbering, "RECENT", 3)  # so that most advertisers are known from disk alone
    for _ in range(3):
        with pytest.raises(KilledError):
            build(ads, bundles, tmp_path / "index", kill_after=3)
    assert build(ads, bundles, tmp_path / "index").num_resumed == 112
    assert content(tmp_path / "index") == content(tmp_path / "unbroken")


def test_a_build_that_stopped_after_its_last_ad_goes_on(
    ads: Path, bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(ads, bundles, tmp_path / "unbroken")

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("contracts.artifact.os.rename", killed)
        with pytest.raises(KilledError):
            build(ads, bundles, tmp_path / "index")
    assert (work(tmp_path / "index") / "index" / "READY").exists()
    assert build(ads, bundles, tmp_path / "index").num_resumed == 160
    assert content(tmp_path / "index") == content(tmp_path / "unbroken")


def test_bad_ads_before_the_interruption_are_counted_once(
    ads_table: Callable[..., pa.Table], bundles: Path, tmp_path: Path
) -> None:
    prices: list[float] = [float(number) for number in range(100)]
    prices[0], prices[5], prices[70] = float("nan"), float("inf"), float("nan")
    (tmp_path / "ads").mkdir()
    pq.write_table(ads_table(100, price=prices), tmp_path / "ads" / "a.parquet")
    unbroken = build(tmp_path / "ads", bundles, tmp_path / "unbroken", max_dropped_share=0.1).manifest
    assert sum(unbroken.dropped.values()) >= 2
    with pytest.raises(KilledError):
        build(tmp_path / "ads", bundles, tmp_path / "index", max_dropped_share=0.1, kill_after=4)
    assert build(tmp_path / "ads", bundles, tmp_path / "index", max_dropped_share=0.1).num_resumed == 64
    assert content(tmp_path / "index") == content(tmp_path / "unbroken")


@pytest.mark.parametrize("change", ["files", "time", "config", "bundle"])
def test_other_inputs_begin_anew(
    ads: Path, ads_table: Callable, bundles: Path, tmp_path: Path, make_two_tower: Callable, change: str
) -> None:
    (tmp_path / "ads").mkdir()
    table = ads_table(200)
    pq.write_table(table, tmp_path / "ads" / "a.parquet")
    config = {"precision": "fp32"} if change == "bundle" else {}
    with pytest.raises(KilledError):
        build(tmp_path / "ads", bundles, tmp_path / "index", kill_after=8, **config)
    if change == "files":
        pq.write_table(ads_table(50, ad_id=[f"b-{number}" for number in range(50)]), tmp_path / "ads" / "b.parquet")
    elif change == "time":
        os.utime(tmp_path / "ads" / "a.parquet", (0, 0))
    elif change == "config":
        config = {"precision": "fp32"}
    else:
        (tmp_path / "other").mkdir()
        make_two_tower(tmp_path / "other" / "two_tower", seed=7)
        (tmp_path / "other" / "heavy").symlink_to(bundles / "heavy")
        bundles = tmp_path / "other"
    assert build(tmp_path / "ads", bundles, tmp_path / "index", **config).num_resumed == 0
    build(tmp_path / "ads", bundles, tmp_path / "unbroken", **config)
    assert content(tmp_path / "index") == content(tmp_path / "unbroken")


@pytest.mark.parametrize(
    ("damage", "how"),
    [
        *((name, "garbage") for name in ("checkpoint.json", "plan/plan.json", "inputs.json", "engine.json")),
        *((name, "truncated") for name in ("checkpoint.json", "index/vectors.npy", "index/ids/ids.bin")),
        *((name, "missing") for name in ("checkpoint.json", "index/bias.npy", "plan/kept.npy", "plan/plan.json")),
    ],
)
def test_damaged_work_is_done_again(ads: Path, bundles: Path, tmp_path: Path, damage: str, how: str) -> None:
    build(ads, bundles, tmp_path / "unbroken")
    with pytest.raises(KilledError):
        build(ads, bundles, tmp_path / "index", kill_after=5)
    path = work(tmp_path / "index") / damage
    if how == "truncated":
        os.truncate(path, path.stat().st_size // 4)
    elif how == "missing":
        path.unlink()
    else:
        path.write_bytes(b"\xff{")
    build(ads, bundles, tmp_path / "index")
    assert content(tmp_path / "index") == content(tmp_path / "unbroken")


def test_bad_input_leaves_nothing(ads: Path, bundles: Path, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="ten"):
        build(ads, bundles, tmp_path / "index", kill_after=5, error=LogError("a.parquet: row ten is wrong"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "full",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("160 requested and 0 written"),  # of NumPy
        RuntimeError("write error in head-0.faiss: 0 != 160 (No space left on device)"),  # of FAISS
    ],
)
def test_a_full_disk_keeps_the_work_and_says_what_to_do(
    ads: Path, bundles: Path, tmp_path: Path, full: Exception
) -> None:
    with pytest.raises(AdsieveError, match=r"no space left on the disk.*run the same command again"):
        build(ads, bundles, tmp_path / "index", kill_after=5, error=full)
    assert build(ads, bundles, tmp_path / "index").num_resumed > 60


@pytest.mark.parametrize("other", [OSError(errno.EIO, "Input/output error"), RuntimeError("a bug"), OSError("odd")])
def test_other_faults_stay_what_they_are_and_keep_the_work(
    ads: Path, bundles: Path, tmp_path: Path, other: Exception
) -> None:
    with pytest.raises(type(other), match=str(other.args[-1])):
        build(ads, bundles, tmp_path / "index", kill_after=5, error=other)
    assert build(ads, bundles, tmp_path / "index").num_resumed > 60


def test_two_builds_of_one_index_at_once(ads: Path, bundles: Path, tmp_path: Path) -> None:
    refused = []

    def embed(*arguments) -> Iterator[EmbeddedBatch]:
        for batch in embed_batches(*arguments):
            if not refused:
                with pytest.raises(InputError, match="another process is making it now") as caught:
                    build(ads, bundles, tmp_path / "index")
                refused.append(caught.value.exit_code)
            yield batch

    config = IndexConfig(threads=1, batch_size=BATCH, engine="onnxruntime_cpu")
    run_build(ads=ads, two_tower=bundles / "two_tower", heavy=None, out=tmp_path / "index", config=config, embed=embed)
    assert refused == [2]
    assert len(Index.open(tmp_path / "index")) == 160
    with pytest.raises(InputError, match="already holds a finished artifact"):
        build(ads, bundles, tmp_path / "index")


def test_what_a_finished_job_left_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "READY").write_text("-\n")
    work(tmp_path / "index").mkdir()
    with pytest.raises(InputError, match="already holds a finished artifact"), work_directory(tmp_path / "index", {}):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_inputs_are_told_apart_by_size_and_time(tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    [(path, size, changed)] = input_files(ds.dataset([str(tmp_path / "a.parquet")]))
    assert (path, size) == (str(tmp_path / "a.parquet"), (tmp_path / "a.parquet").stat().st_size)
    assert changed == (tmp_path / "a.parquet").stat().st_mtime_ns
