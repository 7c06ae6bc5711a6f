"""Links and files where a store keeps directories: links are followed when read, and removed without what is behind."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.artifact import read_manifest
from contracts.errors import InputError
from contracts.release import IndexManifest, Release
from indexing.store import DirectoryStore
from indexing.store_files import BUNDLES, INDEXES, is_sound
from indexing.update_record import Update


@pytest.fixture
def publish(parts: Path, tmp_path: Path) -> Callable[..., Release]:
    """Publishes to ``store`` in ``tmp_path``."""
    store = DirectoryStore(tmp_path / "store")
    return lambda prefix="": store.publish(
        two_tower=parts / f"{prefix}two_tower", heavy=parts / "heavy", index=parts / f"{prefix}index"
    )


def moved_behind_link(path: Path, elsewhere: Path) -> Path:
    """Another disk has it now."""
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    return elsewhere


def test_a_part_behind_a_link_serves_and_a_prune_removes_the_link_alone(
    publish: Callable[..., Release], tmp_path: Path
) -> None:
    store, first = DirectoryStore(tmp_path / "store"), publish()
    elsewhere = moved_behind_link(store.root / INDEXES / first.index, tmp_path / "disk2")
    files = sorted(elsewhere.iterdir())
    assert publish().index == first.index
    publish("other_")
    pruned = store.prune(keep=1)
    assert pruned.indexes == [first.index]
    assert not (store.root / INDEXES / first.index).is_symlink()
    assert sorted(elsewhere.iterdir()) == files
    assert publish().index == first.index


@pytest.mark.parametrize("fault", ["dangling", "damaged", "file"])
def test_what_is_no_sound_copy_behind_a_link_is_replaced(
    publish: Callable[..., Release], parts: Path, tmp_path: Path, fault: str
) -> None:
    store, release = DirectoryStore(tmp_path / "store"), publish()
    copy = store.root / INDEXES / release.index
    elsewhere = moved_behind_link(copy, tmp_path / "disk2")
    match fault:
        case "dangling":
            shutil.rmtree(elsewhere)
        case "damaged":
            (elsewhere / "READY").unlink()
        case "file":
            copy.unlink()
            copy.write_text("no directory")
    again = publish()
    assert not copy.is_symlink()
    assert is_sound(store.paths(again).index, read_manifest(parts / "index", IndexManifest).files)


def test_files_among_the_parts_hold_up_neither_a_prune_nor_what_comes_after(
    publish: Callable[..., Release], tmp_path: Path
) -> None:
    store, release = DirectoryStore(tmp_path / "store"), publish()
    for folder in (BUNDLES, INDEXES):
        (store.root / folder / "notes.txt").write_text("of a person")
        (store.root / folder / ".gone.0123abcd.partial").write_text("of a killed prune")
        (store.root / folder / ".link.0123abcd.partial").symlink_to(tmp_path)
    assert store.prune(keep=1).releases == []
    assert sorted(path.name for path in (store.root / INDEXES).iterdir()) == [release.index]
    assert publish().index == release.index
    assert tmp_path.is_dir()


def test_a_store_behind_a_link_is_one_and_a_link_to_nothing_is_told(
    publish: Callable[..., Release], parts: Path, tmp_path: Path
) -> None:
    release, link = publish(), tmp_path / "link"
    link.symlink_to(tmp_path / "store")
    store = DirectoryStore(link)
    assert store.append_updates([Update(ad_id="a", at=0, takedown=True)]).seq == 1
    assert store.current("shopping") == release
    nowhere = tmp_path / "nowhere"
    nowhere.symlink_to(tmp_path / "absent")
    with pytest.raises(
        InputError, match=r"nowhere: is a link to .*absent, where nothing is; expected the path of a dir"
    ):
        DirectoryStore(nowhere).publish(two_tower=parts / "two_tower", heavy=parts / "heavy", index=parts / "index")
