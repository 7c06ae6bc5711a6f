"""What pins, prune and rollback to a release do, against a plain model of a pointer."""

import os
import random
import shutil
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest

from contracts.bundle import BundleManifest, open_bundle
from contracts.errors import ArtifactError, InputError
from contracts.release import IndexManifest, Release
from indexing.index import Index
from indexing.listing import listed
from indexing.store import DirectoryStore
from indexing.store_files import BUNDLES, INDEXES, Pointer, verified_parts
from indexing.store_recovery import is_whole
from indexing.stores import default_mirror, open_store
from indexing.update_record import Update

PREFIXES = ("", "other_", "third_")


def publish(store: DirectoryStore, parts: Path, prefix: str = "", *, heavy: bool = True) -> Release:
    return store.publish(
        two_tower=parts / f"{prefix}two_tower",
        heavy=parts / "heavy" if heavy else None,
        index=parts / f"{prefix}index",
    )


class Model:
    """What a store should say: ids, current last, and pins."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.pinned: list[str] = []

    def step_to(self, name: str) -> None:
        self.names = self.names[: self.names.index(name) + 1] if name in self.names else [*self.names, name]

    def prune(self, keep: int) -> None:
        near = self.names[-keep:]
        self.names = [name for name in self.names if name in near or name in self.pinned]


@pytest.mark.parametrize("seed", range(6))
def test_random_changes_follow_a_plain_model(parts: Path, tmp_path: Path, seed: int) -> None:
    rng, store, model = random.Random(seed), DirectoryStore(tmp_path / "store"), Model()
    for _ in range(14):
        draw = rng.random()
        if not model.names or draw < 0.4:
            model.step_to(publish(store, parts, rng.choice(PREFIXES)).release_id)
        elif draw < 0.5 and len(model.names) > 1:
            store.rollback("shopping")
            model.step_to(model.names[-2])
        elif draw < 0.6:
            whole = [name for name in _records(store) if is_whole(store.root, store.release("shopping", name))]
            name = rng.choice(whole)
            store.rollback("shopping", name)
            model.step_to(name)
        elif draw < 0.75:
            name = rng.choice(model.names)
            store.pin("shopping", name)
            model.pinned = [*(one for one in model.pinned if one != name), name]
        elif draw < 0.8 and model.pinned:
            store.unpin("shopping", model.pinned[0])
            model.pinned = model.pinned[1:]
        else:
            keep = rng.randint(1, 3)
            would, did = store.prune(keep, dry_run=True), store.prune(keep)
            assert would == did
            model.prune(keep)
            _check_only_used(store, model)
        assert list(store.names("shopping")) == model.names[::-1]
        pointer = store.pointer("shopping")
        assert pointer is not None
        assert pointer.pinned == model.pinned
        for name in {*model.names, *model.pinned}:
            paths = store.paths(store.release("shopping", name))
            verified_parts(paths.two_tower, paths.heavy, paths.index)


def _records(store: DirectoryStore) -> list[str]:
    return [name.removesuffix(".json") for name in os.listdir(store.root / "releases" / "shopping")]


def _check_only_used(store: DirectoryStore, model: Model) -> None:
    used = [store.release("shopping", name) for name in {*model.names, *model.pinned}]
    assert set(os.listdir(store.root / "indexes")) == {one.index for one in used}
    bundles = {one.two_tower for one in used} | {one.heavy for one in used}
    assert set(os.listdir(store.root / "bundles")) == bundles


def test_a_part_that_another_scenario_uses_stays(parts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    standard = publish(store, parts, "standard_")
    publish(store, parts)
    publish(store, parts, "other_", heavy=False)
    pruned = store.prune(1)
    assert len(pruned.releases) == len(pruned.indexes) == len(pruned.bundles) == 1
    assert store.current("standard") == standard
    paths = store.paths(standard)
    verified_parts(paths.two_tower, paths.heavy, paths.index)


def test_prune_tells_what_it_freed(parts: Path, tmp_path: Path) -> None:
    for name in ("two_tower", "heavy", "index"):
        shutil.copytree(parts / name, tmp_path / "own" / name)
    store = DirectoryStore(tmp_path / "store")
    first = publish(store, tmp_path / "own")
    publish(store, parts, "other_")
    assert store.prune(1, dry_run=True).bytes < 5_000  # files that were published still have their own names
    shutil.rmtree(tmp_path / "own")
    paths = store.paths(first)
    files = [path for part in (paths.two_tower, paths.index) for path in part.rglob("*") if path.is_file()]
    expected = sum(path.stat().st_size for path in files)
    assert store.prune(1, dry_run=True).bytes == expected
    assert store.list("shopping")[1] == first
    pruned = store.prune(1)
    assert pruned.bytes == expected
    assert pruned.releases == [first.release_id]
    assert listed(store, "shopping", datetime.now(UTC))[1].state == "pruned"
    with pytest.raises(InputError, match="is not whole, some of its parts are gone"):
        store.rollback("shopping", first.release_id)
    with pytest.raises(InputError, match="is not whole"):
        store.pin("shopping", first.release_id)
    again = publish(store, parts)  # brings the parts back, and the old release with them
    assert store.rollback("shopping", first.release_id) == first
    assert list(store.names("shopping"))[:2] == [first.release_id, again.release_id]


def test_a_service_that_has_mapped_what_is_pruned_goes_on(parts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    mapped = Index.open(store.paths(publish(store, parts)).index)
    publish(store, parts, "other_")
    assert store.prune(1).indexes == [mapped.manifest.version]
    assert not mapped.path.exists()
    np.testing.assert_array_equal(mapped.vectors, Index.open(parts / "index").vectors)


@pytest.mark.parametrize("change", ["prune", "pin", "unpin", "rollback"])
def test_a_directory_that_is_no_store_stays_as_it_is(tmp_path: Path, change: str) -> None:
    store = DirectoryStore(tmp_path)
    arguments: dict[str, list] = {"prune": [], "rollback": ["shopping"]}
    with pytest.raises(InputError, match="no store here"):
        getattr(store, change)(*arguments.get(change, ["shopping", "release"]))
    assert os.listdir(tmp_path) == []


def test_names_that_the_store_lacks_are_told(parts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    release = publish(store, parts)
    with pytest.raises(InputError, match=rf"has no release 'nothing'; it has: {release.release_id}"):
        store.rollback("shopping", "nothing")
    with pytest.raises(InputError, match="scenario 'standard' has no release; the store has: shopping"):
        store.pin("standard", release.release_id)
    with pytest.raises(InputError, match="keep: expected at least 1"):
        store.prune(0)


def test_an_index_whose_updates_the_log_dropped_is_refused(parts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    first = publish(store, parts)
    second = publish(store, parts, "other_")
    position = store.append_updates([Update(ad_id="ad-1", at=5, takedown=True), Update(ad_id="ad-2", at=6, bid=2.0)])
    assert store.update_log().end == position
    store.prune(2)  # neither index has any update merged, so that all stay
    assert [update.ad_id for update in store.update_log().read()] == ["ad-1", "ad-2"]
    log = store.update_log()
    with log.locked():
        manifest = log.manifest()
        assert manifest is not None
        log.replace(manifest, manifest.segments, floor=2)
    with pytest.raises(ArtifactError, match="holds the updates up to number 0, .* no longer keeps all that come after"):
        store.rollback("shopping")
    with pytest.raises(ArtifactError, match="build it again with `adsieve index build --store`"):
        publish(store, parts, "third_")
    assert store.list("shopping") == [second, first]


def test_a_mirror_takes_over_parts_before_pointers(parts: Path, tmp_path: Path) -> None:
    store, mirror = DirectoryStore(tmp_path / "store"), DirectoryStore(tmp_path / "mirror")
    releases = [publish(store, parts), publish(store, parts, "other_")]
    store.pin("shopping", releases[0].release_id)
    pointer = store.pointer("shopping")
    assert pointer is not None
    with pytest.raises(ArtifactError, match="is not here whole"):
        mirror.adopt("shopping", pointer, releases)
    assert mirror.scenarios() == []
    for release in releases:
        paths = store.paths(release)
        for kind, path, type_ in (
            (BUNDLES, paths.two_tower, BundleManifest),
            (BUNDLES, paths.heavy, BundleManifest),
            (INDEXES, paths.index, IndexManifest),
        ):
            assert path is not None
            files = msgspec.json.decode((path / "manifest.json").read_bytes(), type=type_).files
            mirror.place(kind, path.name, path, files)
    mirror.adopt("shopping", pointer, releases)
    assert mirror.pointer("shopping") == pointer
    assert mirror.list("shopping") == store.list("shopping")
    with pytest.raises(ArtifactError, match="is not here whole"):
        mirror.adopt("shopping", Pointer(release="another"), releases)
    assert open_bundle(mirror.paths(releases[0]).two_tower).manifest.version == releases[0].two_tower


def test_a_store_is_opened_by_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_store(tmp_path).local.root == tmp_path
    with pytest.raises(InputError, match=r"--store 'http://host': expected a directory or a URL"):
        open_store("http://host")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_mirror("redis://:secret@host/0") == default_mirror("redis://host/0")
    assert default_mirror("redis://host/0") != default_mirror("redis://host/1")
    assert default_mirror("redis://host/0").parent == tmp_path / "adsieve"
