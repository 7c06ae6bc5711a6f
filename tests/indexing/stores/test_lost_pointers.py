"""A pointer that is gone is a lost one, not one that never was: nothing is pruned, and the next change restores it."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contracts.errors import ArtifactError, InputError
from contracts.release import Release
from indexing.cli import app
from indexing.store import DirectoryStore
from tests.indexing.stores.test_store_faults import forked

Publish = Callable[..., Release]
LOST = ["current/shopping.json", "current", "current and copies"]


@pytest.fixture
def store(publish: Publish, tmp_path: Path) -> DirectoryStore:
    """Three releases of one scenario, the first one pinned, and one of another."""
    store = DirectoryStore(tmp_path / "store")
    for prefix in ("", "other_", "third_", "standard_"):
        publish(store, prefix)
    store.pin("shopping", store.names("shopping")[-1])
    return store


def lose(store: DirectoryStore, what: str) -> None:
    for name in what.split(" and "):
        path = store.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def files(store: DirectoryStore) -> set[str]:
    return {str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.name != ".lock"}


@pytest.mark.parametrize("what", LOST)
def test_a_lost_pointer_is_told_and_nothing_is_pruned(store: DirectoryStore, what: str) -> None:
    lose(store, what)
    before = files(store)
    assert store.scenarios() == ["shopping", "standard"]
    with pytest.raises(ArtifactError, match=r"current/shopping\.json: missing, .* rollback --scenario shopping --to"):
        store.current("shopping")
    for dry_run in (True, False):
        with pytest.raises(ArtifactError, match=r"current/shopping\.json: missing"):
            store.prune(1, dry_run=dry_run)
    assert before <= files(store)
    listed = CliRunner().invoke(app, ["list", "--store", str(store.root)])
    assert listed.exit_code == 1
    assert "current/shopping.json: missing" in listed.output.replace("\n", "")


@pytest.mark.parametrize("what", LOST)
@pytest.mark.parametrize("change", ["publish", "rollback", "rollback --to", "pin", "restore"])
def test_whatever_moves_a_lost_pointer_restores_it(
    store: DirectoryStore, publish: Publish, what: str, change: str
) -> None:
    pointer = store.pointer("shopping")
    assert pointer is not None
    names = pointer.names
    lose(store, what)
    if change == "publish":
        names = [publish(store).release_id, *names]
    elif change == "rollback":
        store.rollback("shopping")
        names = names[1:]
    elif change == "rollback --to":
        store.rollback("shopping", names[0])
    elif change == "pin":
        store.pin("shopping", names[1])
    else:
        store.restore("shopping")
    found = store.pointer("shopping")
    assert found is not None
    assert found.names == names
    kept = [] if "copies" in what else pointer.pinned  # pins are in no record
    assert found.pinned == [*kept, *([names[1]] if change == "pin" else [])]
    assert DirectoryStore(store.root).list("shopping")[0].release_id == names[0]


def test_updates_are_taken_while_a_pointer_is_lost(store: DirectoryStore) -> None:
    lose(store, "current")
    done = CliRunner().invoke(app, ["update", "--takedown", "ad-1", "--store", str(store.root)])
    assert done.exit_code == 0, done.output
    assert [update.ad_id for update in store.update_log().read()] == ["ad-1"]


def test_a_first_publish_that_was_killed_lost_no_pointer(publish: Publish, parts: Path, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    store = DirectoryStore(tmp_path / "store")
    with pytest.raises(RuntimeError):  # with the record written, as a kill would leave it
        publish(DirectoryStore(store.root, before_move=fail))
    assert list((store.root / "releases" / "shopping").iterdir())
    assert store.scenarios() == []
    assert store.current("shopping") is None
    assert len(store.prune(1).indexes) == 1
    release = publish(store)
    assert release.previous is None
    assert list(store.names("shopping")) == [release.release_id]
    lose(store, "current")
    assert store.scenarios() == ["shopping"]


def test_a_first_publish_killed_at_every_second_step_is_no_loss(publish: Publish, tmp_path: Path) -> None:
    kill_at, killed = 1, signal.SIGKILL
    while killed:
        kill_at += 2
        store = DirectoryStore(tmp_path / str(kill_at))
        killed = forked(publish, store.root, kill_at)
        assert killed in (0, signal.SIGKILL)
        first = store.current("shopping")
        assert store.scenarios() == ([] if first is None else ["shopping"]), kill_at
        release = publish(store, "other_")
        assert release.previous == (None if first is None else first.release_id), kill_at
        assert store.current("shopping") == release
        shutil.rmtree(store.root)
    assert kill_at > 10


@pytest.mark.parametrize("folder", ["current", "copies"])
def test_a_directory_in_the_place_of_a_pointer_is_named_with_its_way_out(
    store: DirectoryStore, publish: Publish, folder: str
) -> None:
    names, path = list(store.names("shopping")), store.root / folder / "shopping.json"
    path.unlink()
    path.mkdir()
    for change in (publish, lambda store: store.rollback("shopping"), lambda store: store.prune(1)):
        with pytest.raises(ArtifactError, match=rf"{folder}/shopping\.json: .* directory.*move it away"):
            change(store)
    path.rmdir()
    store.rollback("shopping", names[0])
    assert list(store.names("shopping")) == names


def test_a_directory_that_holds_something_else_is_no_store(parts: Path, publish: Publish, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (log / "ads").mkdir(parents=True)
    for directory in (log, parts / "index", parts / "two_tower"):
        before = sorted(directory.rglob("*"))
        with pytest.raises(InputError, match=r"holds .* and is no store"):
            publish(DirectoryStore(directory))
        for change in (DirectoryStore.prune, lambda store: store.rollback("shopping")):
            with pytest.raises(InputError, match="no store here"):
                change(DirectoryStore(directory))
        assert sorted(directory.rglob("*")) == before
    for name in ("empty", "waited"):
        (tmp_path / name).mkdir()
    (tmp_path / "waited" / "hosts").mkdir()  # of a service that waits for the first release
    DirectoryStore(tmp_path / "updated").append_updates([])
    for name in ("empty", "waited", "updated", "new"):
        assert publish(DirectoryStore(tmp_path / name)).number == 1


@pytest.mark.parametrize("command", ["build", "reencode", "export"])
def test_nothing_is_made_inside_of_a_store(
    store: DirectoryStore, parts: Path, ads: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "linked").symlink_to(store.root / "indexes")
    two_tower, index, heavy = str(parts / "two_tower"), str(parts / "index"), str(parts / "heavy")
    options = {
        "build": ["--two-tower", two_tower, "--ads", str(ads)],
        "reencode": ["--index", index, "--heavy", heavy, "--ads", str(ads)],
        "export": ["--index", index],
    }[command]
    before = files(store)
    for out in (store.root / "indexes" / "new", store.root / "a" / "b", tmp_path / "linked" / "new"):
        found = CliRunner().invoke(app, [command, *options, "--out", str(out)])
        assert isinstance(found.exception, InputError), found.output
        assert "is inside of the store" in str(found.exception)
    assert files(store) == before


def test_only_what_a_manifest_names_comes_into_the_store(parts: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    for name in ("two_tower", "heavy", "index"):
        shutil.copytree(parts / name, own / name)
        (own / name / "notes").mkdir()
        (own / name / "notes" / "beside.txt").write_text("of nobody's manifest")
    store = DirectoryStore(tmp_path / "store")
    release = store.publish(two_tower=own / "two_tower", heavy=own / "heavy", index=own / "index")
    paths = store.paths(release)
    for name, copy in (("two_tower", paths.two_tower), ("heavy", paths.heavy), ("index", paths.index)):
        assert copy is not None
        found = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
        assert found == {str(path.relative_to(parts / name)) for path in (parts / name).rglob("*") if path.is_file()}


def test_what_a_prune_would_remove_is_told_without_writing(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import indexing.store as module
    import indexing.update_log as log_module

    expected = store.prune(1, dry_run=True)
    store.append_updates([])

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    for name in (".lock", "updates/.lock"):
        (store.root / name).unlink()
    before = files(store)
    monkeypatch.setattr(module, "file_lock", refuse)
    monkeypatch.setattr(log_module, "file_lock", refuse)
    assert store.prune(1, dry_run=True) == expected
    assert files(store) == before
    assert expected.indexes
