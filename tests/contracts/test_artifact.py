"""Artifacts appear whole or not at all, and a reader notices every change."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from contracts.artifact import (
    FileEntry,
    file_entries,
    is_ready,
    publishing,
    read_manifest,
    verify_files,
    write_bytes,
    write_json,
)
from contracts.errors import ArtifactError, InputError, WrongArtifactError


class Note(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    files: dict[str, FileEntry] = {}


def publish(target: Path, text: str = "hello") -> None:
    with publishing(target) as aside:
        (aside / "sub").mkdir()
        (aside / "sub" / "data.bin").write_bytes(text.encode() * 100)
        write_json(aside / "manifest.json", Note(text=text, files=file_entries(aside)))


def test_directories_above_a_file_are_created(tmp_path: Path) -> None:
    write_json(tmp_path / "a" / "b" / "note.json", {"text": "hello"})
    assert msgspec.json.decode((tmp_path / "a" / "b" / "note.json").read_bytes()) == {"text": "hello"}


def hidden(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith(".")]


def test_a_published_directory_is_ready_and_verifies(tmp_path: Path) -> None:
    publish(tmp_path / "deep" / "a")
    note = read_manifest(tmp_path / "deep" / "a", Note)
    verify_files(tmp_path / "deep" / "a", note.files)
    assert note.text == "hello"
    assert list(note.files) == ["sub/data.bin"]
    assert not hidden(tmp_path / "deep")


def test_an_empty_target_is_filled_and_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    publish(tmp_path / "empty")
    with pytest.raises(InputError, match="already holds a finished artifact"):
        publish(tmp_path / "empty")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="not an empty directory"):
        publish(tmp_path / "file")


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), publishing(tmp_path / "a") as aside:
        (aside / "absent").read_text()
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_writers_wins(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="created meanwhile"), publishing(tmp_path / "a"):
        publish(tmp_path / "a", "fast")
    assert read_manifest(tmp_path / "a", Note).text == "fast"
    assert not hidden(tmp_path)


def test_leftovers_of_the_dead_are_removed_and_of_the_living_kept(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from contracts.artifact import publishing
        with publishing(Path(sys.argv[1])) as aside:
            (aside / "half").write_text("half")
            print("writing", flush=True)
            time.sleep(60)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "a")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with publishing(tmp_path / "a") as aside:
        assert len(hidden(tmp_path)) == 2
        (aside / "x").write_text("x")
    assert len(hidden(tmp_path)) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with pytest.raises(InputError, match="already"):
        publish(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "moved")
    publish(tmp_path / "a")
    assert not hidden(tmp_path)


def test_unfinished_and_altered_artifacts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such directory"):
        read_manifest(tmp_path / "a", Note)
    publish(tmp_path / "a")
    files = read_manifest(tmp_path / "a", Note).files
    data = tmp_path / "a" / "sub" / "data.bin"
    content = data.read_bytes()

    data.write_bytes(content[:-1])
    with pytest.raises(ArtifactError, match=r"data.bin: truncated or altered, 499 bytes, expected 500"):
        verify_files(tmp_path / "a", files)
    data.write_bytes(b"X" + content[1:])
    with pytest.raises(ArtifactError, match=r"data.bin: wrong checksum"):
        verify_files(tmp_path / "a", files)
    data.unlink()
    with pytest.raises(ArtifactError, match=r"data.bin: missing"):
        verify_files(tmp_path / "a", files)

    manifest = tmp_path / "a" / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b"hello", b"jello"))
    with pytest.raises(ArtifactError, match="wrong checksum"):
        read_manifest(tmp_path / "a", Note)
    manifest.write_bytes(whole)
    with pytest.raises(ArtifactError, match="not a manifest of the expected kind"):
        read_manifest(tmp_path / "a", FileEntry)
    manifest.unlink()
    with pytest.raises(ArtifactError, match=r"manifest\.json: missing"):
        read_manifest(tmp_path / "a", Note)
    (tmp_path / "a" / "READY").unlink()
    assert not is_ready(tmp_path / "a")
    with pytest.raises(ArtifactError, match="unfinished"):
        read_manifest(tmp_path / "a", Note)


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        (["series.json", "members/"], "a teacher series, whose bundles are members/*/bundle"),
        (["run.json", "checkpoints/"], "a training run, of which `export` or `publish` seals a bundle"),
        (["config.json", "examples/"], "a training run that has not finished"),
        (["members/"], "a teacher series that has not finished"),
        (["candidates/", "requests/", "ads/"], "a log"),
        (["READY", "candidates/"], "a log"),
        (["current/", "bundles/"], "a store of releases"),
    ],
)
def test_another_directory_than_an_artifact_is_wrong_usage(tmp_path: Path, marks: list[str], words: str) -> None:
    for mark in marks:
        if mark.endswith("/"):
            (tmp_path / mark).mkdir()
        else:
            (tmp_path / mark).write_text("-")
    with pytest.raises(WrongArtifactError, match=f", it holds {re.escape(words)}$") as refused:
        read_manifest(tmp_path, Note)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"kind": "heavy"}', "a sealed bundle of kind heavy"), ('{"two_tower": "t"}', "an index")],
)
def test_an_artifact_of_another_kind_is_wrong_usage(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    (tmp_path / "READY").write_text(hashlib.sha256(text.encode()).hexdigest())
    with pytest.raises(WrongArtifactError, match=f"not a manifest of the expected kind, it holds {words}: "):
        read_manifest(tmp_path, Note)


def test_write_bytes_replaces_whole(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"one")
    write_bytes(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert not hidden(tmp_path)


def test_files_are_as_readable_as_their_directory(tmp_path: Path) -> None:
    with publishing(tmp_path / "made") as aside:
        (aside / "weights").write_bytes(b"x")
        (aside / "weights").chmod(0o600)
    directory = (tmp_path / "made").stat().st_mode
    assert (tmp_path / "made" / "weights").stat().st_mode & 0o777 == directory & 0o666
