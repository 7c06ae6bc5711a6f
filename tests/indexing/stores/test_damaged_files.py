"""Every file of a stored release, flipped, cut off or gone: it is named, nothing of it serves, a publish repairs it."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from contracts.errors import AdsieveError, ArtifactError
from contracts.release import Release
from indexing.index import Index
from indexing.store import DirectoryStore
from indexing.store_files import verified_parts
from indexing.store_recovery import is_whole

PARTS = ("two_tower", "heavy", "index")
Damage = Callable[[bytes, random.Random], bytes | None]


def flipped(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def cut(content: bytes, rng: random.Random) -> bytes:
    """Without its end, which is more than the end of its last line."""
    return content[: rng.choice([0, len(content) - 2, rng.randrange(len(content) - 1)])]


def gone(content: bytes, rng: random.Random) -> None:
    """What is left of a file that is removed."""


@pytest.fixture
def store(parts: Path, publish: Callable[..., Release], tmp_path: Path) -> DirectoryStore:
    """A store with a release of one model, and one of another that serves; they share the heavy bundle."""
    store = DirectoryStore(tmp_path / "store")
    publish(store)
    publish(store, "other_")
    return store


def damage(path: Path, how: Damage, rng: random.Random) -> bool:
    """Damage a file in a place of its own, since the store shares it by a hard link; false where it is empty."""
    sound = path.read_bytes()
    content = how(sound, rng) if sound else None
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    return bool(sound)


def verify(store: DirectoryStore) -> None:
    release = store.current("shopping")
    assert release is not None
    paths = store.paths(release)
    verified_parts(paths.two_tower, paths.heavy, paths.index)


@pytest.mark.parametrize("how", [flipped, cut, gone])
@pytest.mark.parametrize("part", ["two_tower", "heavy", "index"])
def test_a_damaged_file_of_a_part_is_refused_by_name_and_repaired(
    store: DirectoryStore, publish: Callable[..., Release], how: Damage, part: str
) -> None:
    rng, release = random.Random(0), store.current("shopping")
    assert release is not None
    paths = store.paths(release)
    directory = getattr(paths, part)
    names = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    assert len(names) > 5
    for name in names:
        mapped = Index.open(paths.index)
        expected = mapped.vectors.copy(), mapped.id_table.ids(range(len(mapped)))
        damage(directory / name, how, rng)
        with pytest.raises(ArtifactError, match=directory.name):
            verify(store)
        if part != "heavy":
            other = store.rollback("shopping")  # what serves is damaged, what was before is not
            with pytest.raises(AdsieveError):
                store.rollback("shopping", release.release_id)
            assert store.current("shopping") == other
        assert (mapped.vectors == expected[0]).all()  # a service has it mapped
        assert mapped.id_table.ids(range(len(mapped))) == expected[1]
        release = publish(store, "other_")
        verify(store)
        assert store.current("shopping") == release


def told(store: DirectoryStore) -> Release | str | None:
    """What serves, as a reader is told."""
    try:
        return store.current("shopping")
    except ArtifactError:
        return "refused"


@pytest.mark.parametrize("how", [flipped, cut, gone])
@pytest.mark.parametrize("what", ["current", "copies", "releases", "updates/log.json"])
def test_a_damaged_record_serves_nothing_else_and_the_next_publish_succeeds(
    store: DirectoryStore, publish: Callable[..., Release], tmp_path: Path, how: Damage, what: str
) -> None:
    store.append_updates([])
    first, before = store.list("shopping")[1], store.current("shopping")
    assert before is not None
    shutil.copytree(store.root, tmp_path / "sound")
    for seed in range(6):
        shutil.rmtree(store.root)
        shutil.copytree(tmp_path / "sound", store.root)
        names = {"releases": f"shopping/{before.release_id}.json", "updates/log.json": ""}
        damage(store.root / what / names.get(what, "shopping.json"), how, random.Random(seed))
        found = told(store)
        if what == "releases" and isinstance(found, Release):  # what else a record says is not checked
            found = msgspec.structs.replace(before, **{name: getattr(found, name) for name in PARTS})
            found = before if not is_whole(store.root, found) else found
        assert found in (before, "refused") or (found is None and (what, how) == ("current", gone))
        try:
            release = publish(store, "third_")
        except ArtifactError:  # of a log, which names its way out: a copy
            assert what == "updates/log.json"
            shutil.copy(tmp_path / "sound" / what, store.root / what)
            release = publish(store, "third_")
        assert store.current("shopping") == release
        verify(store)
        assert store.rollback("shopping", first.release_id) == first
        verify(store)


@pytest.mark.parametrize("name", ["requests.jsonl", "query_tower.onnx"])
def test_what_serves_may_be_damaged_while_its_successor_is_judged(
    store: DirectoryStore, parts: Path, name: str
) -> None:
    from indexing.release_gate import Candidate, publish_release

    serving = store.current("shopping")
    assert serving is not None
    damage(store.paths(serving).two_tower / name, flipped, random.Random(0))
    candidate = Candidate(two_tower=parts / "third_two_tower", heavy=None, index=parts / "third_index")
    release = publish_release(store, candidate, override="the towers alone shall serve")
    assert release.judgement is not None
    assert "the current release cannot be opened" in release.judgement.skipped[0]
    assert name in release.judgement.skipped[0]
    verify(store)


def test_a_mark_of_completion_that_is_no_text_is_a_damaged_one(store: DirectoryStore) -> None:
    serving = store.current("shopping")
    assert serving is not None
    mark = store.paths(serving).index / "READY"
    content = mark.read_bytes()
    mark.unlink()
    mark.write_bytes(bytes([content[0] ^ 0x80]) + content[1:])
    with pytest.raises(ArtifactError, match="wrong checksum"):
        verify(store)
