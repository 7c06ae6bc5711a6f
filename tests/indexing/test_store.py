"""Releases are published whole, in one step, and only of parts that belong together."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from contracts.bundle import open_bundle
from contracts.errors import ArtifactError, InputError, MismatchError
from contracts.release import Release
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.nightly import build_index
from indexing.store import DirectoryStore


@pytest.fixture(scope="module")
def parts(
    ads: Path, bundles: Path, tmp_path_factory: pytest.TempPathFactory, make_two_tower: Callable, make_heavy: Callable
) -> Path:
    """Bundles and indexes of two versions of the model: ``two_tower``, ``heavy``, ``index`` and ``other_*``."""
    directory = tmp_path_factory.mktemp("parts")
    shutil.copytree(bundles, directory, dirs_exist_ok=True)
    make_two_tower(directory / "other_two_tower", seed=1)
    for name in ("", "other_"):
        _build(ads, directory, f"{name}two_tower", directory / f"{name}index")
    return directory


def _build(ads: Path, directory: Path, two_tower: str, out: Path, *, heavy: bool = True) -> None:
    build_index(
        ads=ads,
        two_tower=directory / two_tower,
        heavy=directory / "heavy" if heavy else None,
        out=out,
        config=IndexConfig(threads=1),
    )


def publish(store: DirectoryStore, parts: Path, prefix: str = "", **changes: Path | None) -> Release:
    paths = {"two_tower": parts / f"{prefix}two_tower", "heavy": parts / "heavy", "index": parts / f"{prefix}index"}
    return store.publish(**{**paths, **changes})  # type: ignore[arg-type]


def check_release(store: DirectoryStore, release: Release) -> None:
    """Every part of a release opens, verified, and is the version that the release names."""
    paths = store.paths(release)
    assert open_bundle(paths.two_tower).manifest.version == release.two_tower
    assert Index.open(paths.index).manifest.version == release.index
    assert Index.open(paths.index).manifest.two_tower == release.two_tower
    assert (paths.heavy is None) == (release.heavy is None)
    if paths.heavy is not None:
        assert open_bundle(paths.heavy).manifest.version == release.heavy


def hidden(root: Path) -> list[str]:
    return [path.name for path in root.rglob(".*") if path.name != ".lock"]


def test_releases_are_published_listed_and_rolled_back(parts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    assert store.scenarios() == []
    assert store.current("shopping") is None
    assert store.list("shopping") == []
    first = store.publish(
        two_tower=parts / "two_tower", heavy=parts / "heavy", index=parts / "index", metrics={"recall": 0.9}
    )
    second = publish(store, parts, "other_")
    third = publish(store, parts, heavy=None)
    assert store.scenarios() == ["shopping"]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):  # not taken for a store without releases
        DirectoryStore(tmp_path / "file").scenarios()
    assert store.current("shopping") == third
    assert store.list("shopping") == [third, second, first]
    assert (first.previous, second.previous, third.previous) == (None, first.release_id, second.release_id)
    assert first.metrics == {"recall": 0.9}
    assert third.heavy is None
    for release in (first, second, third):
        check_release(store, release)
    assert store.rollback("shopping") == second
    assert store.rollback("shopping") == first
    assert store.list("shopping") == [first]
    with pytest.raises(InputError, match="scenario 'shopping' has no earlier release"):
        store.rollback("shopping")
    fourth = publish(store, parts, "other_")
    assert store.list("shopping") == [fourth, first]
    assert not hidden(tmp_path)


def test_parts_are_linked_once_and_outlive_their_source(parts: Path, tmp_path: Path) -> None:
    shutil.copytree(parts, tmp_path / "parts")
    store = DirectoryStore(tmp_path / "store")
    release = publish(store, tmp_path / "parts")
    copy = store.paths(release).index / "vectors.npy"
    assert os.stat(copy).st_ino == os.stat(tmp_path / "parts" / "index" / "vectors.npy").st_ino
    again = publish(store, tmp_path / "parts")
    assert again.release_id != release.release_id
    assert len(list((tmp_path / "store" / "indexes").iterdir())) == 1
    shutil.rmtree(tmp_path / "parts")
    check_release(store, again)


def test_parts_are_copied_where_links_are_impossible(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    store = DirectoryStore(tmp_path / "store")
    check_release(store, publish(store, parts))


def test_a_part_that_is_in_the_store_may_be_published_from_there(parts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    heavy = store.paths(publish(store, parts)).heavy
    check_release(store, publish(store, parts, "other_", heavy=heavy))


def test_a_damaged_copy_in_the_store_is_replaced(parts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    release = publish(store, parts)
    vectors = store.paths(release).index / "vectors.npy"
    content = vectors.read_bytes()
    vectors.unlink()
    vectors.write_bytes(b"X" + content[1:])
    with pytest.raises(ArtifactError, match="wrong checksum"):
        check_release(store, release)
    check_release(store, publish(store, parts))
    check_release(store, release)
    (store.paths(release).heavy / "READY").unlink()  # type: ignore[operator]
    check_release(store, publish(store, parts))


def test_parts_that_do_not_belong_together_are_refused(
    ads: Path, parts: Path, tmp_path: Path, make_heavy: Callable, heavy_schema: dict
) -> None:
    store = DirectoryStore(tmp_path / "store")
    release = publish(store, parts)
    with pytest.raises(
        MismatchError, match=r"index index-shopping-\w+ was embedded by two_tower-shopping-\w+, expected"
    ):
        publish(store, parts, index=parts / "other_index")
    features = {**heavy_schema["features"], "image": {"side": "ad", "kind": "embedding", "length": 3}}
    make_heavy(tmp_path / "heavy", schema={**heavy_schema, "features": features})
    with pytest.raises(MismatchError, match=r"the heavy block of index .* is of ad schema"):
        publish(store, parts, heavy=tmp_path / "heavy")
    _build(ads, parts, "two_tower", tmp_path / "light", heavy=False)
    with pytest.raises(
        MismatchError, match=r"has no block for a heavy ranker; run `adsieve index build` with `--heavy`"
    ):
        publish(store, parts, index=tmp_path / "light")
    with pytest.raises(MismatchError, match="kind 'heavy', expected 'two_tower'"):
        publish(store, parts, two_tower=parts / "heavy")
    with pytest.raises(ArtifactError, match="not a manifest of the expected kind"):
        publish(store, parts, index=parts / "two_tower")
    assert store.list("shopping") == [release]


def test_another_heavy_ranker_of_the_same_ad_schema_needs_no_new_index(
    parts: Path, tmp_path: Path, make_heavy: Callable, heavy_schema: dict
) -> None:
    features = {name: feature for name, feature in heavy_schema["features"].items() if name != "clicks"}
    make_heavy(tmp_path / "heavy", seed=3, schema={**heavy_schema, "features": features})
    store = DirectoryStore(tmp_path / "store")
    check_release(store, publish(store, parts, heavy=tmp_path / "heavy"))


@pytest.mark.parametrize("name", ["two_tower/pin_tower.onnx", "heavy/weights.safetensors", "index/bias.npy"])
def test_damaged_parts_are_refused(parts: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(parts, tmp_path / "parts")
    store = DirectoryStore(tmp_path / "store")
    path = tmp_path / "parts" / name
    content = path.read_bytes()
    for damaged, message in ((content[:-1], "truncated"), (content[:-1] + b"\7", "wrong checksum")):
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=message):
            publish(store, tmp_path / "parts")
    assert store.scenarios() == []


def test_a_rollback_to_a_damaged_release_is_refused(parts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    first, second = publish(store, parts), publish(store, parts, "other_")
    (store.paths(first).index / "bias.npy").unlink()
    with pytest.raises(ArtifactError, match=r"bias\.npy: missing"):
        store.rollback("shopping")
    assert store.current("shopping") == second


def test_unreadable_pointers_and_releases_are_named(parts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    release = publish(store, parts)
    record = tmp_path / "store" / "releases" / "shopping" / f"{release.release_id}.json"
    record.unlink()
    with pytest.raises(ArtifactError, match=rf"{release.release_id}\.json: missing"):
        store.current("shopping")
    (tmp_path / "store" / "current" / "shopping.json").write_text("{}")
    pointer = tmp_path / "store" / "current" / "shopping.json"
    with pytest.raises(ArtifactError, match=r"current/shopping\.json: not readable as Pointer: .*release"):
        store.list("shopping")
    pointer.unlink()
    pointer.mkdir()
    with pytest.raises(ArtifactError, match=r"current/shopping\.json: cannot be read: Is a directory"):
        store.current("shopping")


def test_a_stray_file_beside_the_pointers_is_no_scenario(parts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    publish(store, parts)
    for name in ("shopping (copy).json", ".shopping.json", "shopping.json~"):
        (tmp_path / "store" / "current" / name).write_text("{}")
    assert store.scenarios() == ["shopping"]


@pytest.mark.parametrize("scenario", ["../shopping", "", ".lock", "a/b"])
def test_a_scenario_cannot_name_another_file(tmp_path: Path, scenario: str) -> None:
    with pytest.raises(InputError, match="scenario: expected 1 to 80"):
        DirectoryStore(tmp_path).current(scenario)


PUBLISH = """
import sys
from pathlib import Path
from indexing.store import DirectoryStore
root, parts, prefix = sys.argv[1:]
for _ in range(5):
    DirectoryStore(Path(root)).publish(
        two_tower=Path(parts, prefix + "two_tower"), heavy=Path(parts, "heavy"), index=Path(parts, prefix + "index")
    )
"""


def test_two_publishers_at_once_both_succeed(parts: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    arguments = [sys.executable, "-c", PUBLISH, str(root), str(parts)]
    processes = [subprocess.Popen([*arguments, prefix], stderr=subprocess.PIPE) for prefix in ("", "other_")]
    outcomes = [(process.communicate()[1], process.returncode) for process in processes]
    assert [code for _, code in outcomes] == [0, 0], outcomes
    store = DirectoryStore(root)
    releases = store.list("shopping")
    assert len(releases) == 10
    newer_to_older = zip(releases, [*releases[1:], None], strict=True)
    assert all(newer.previous == (older.release_id if older else None) for newer, older in newer_to_older)
    for release in releases:
        assert msgspec.json.encode(release)
    check_release(store, releases[0])
    assert not hidden(root)
