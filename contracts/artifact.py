"""Directories that are written once: aside first, READY last, then one rename; and how a reader checks them.

A finished artifact holds its files, usually a ``manifest.json`` with the sha256 and size of each, and ``READY``, which
holds the sha256 of the manifest. A writer that dies leaves only a hidden sibling that no reader looks at and that the
next writer removes.
"""

import fcntl
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from contracts.errors import ArtifactError, InputError, WrongArtifactError

READY = "READY"
MANIFEST = "manifest.json"
PARTIAL_SUFFIX = ".partial"
TEMPORARY_SUFFIX = ".tmp"
NO_MANIFEST = "-"

_CHUNK_BYTES = 1 << 20

_MARKS = {
    "series.json": "a teacher series, whose bundles are members/*/bundle",
    "run.json": "a training run, of which `export` or `publish` seals a bundle",
    "members": "a teacher series that has not finished",
    "checkpoints": "a training run that has not finished",
    "examples": "a training run that has not finished",
    "candidates": "a log",
    "current": "a store of releases",
}
"""What a file or folder tells of the directory that it stands in."""

T = TypeVar("T")


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a manifest says of one file."""

    sha256: str
    bytes: int


@contextmanager
def publishing(target: Path) -> Iterator[Path]:
    """Write a directory aside and make it appear whole, in one step, when the block ends without an error.

    The block fills the directory that is yielded. Then every file is flushed to disk, ``READY`` is written last and
    the directory is renamed to ``target``. On an error, or when the process is killed, ``target`` does not appear; what
    dead processes left beside it is removed at the next call. Several processes may write the same target: the first
    to finish wins.

    Raises:
        InputError: ``target`` exists already and is not an empty directory.
    """
    target = Path(target).absolute()
    refuse_existing(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside, lock = create_aside(target)
    try:
        yield aside
        finish_directory(aside, target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def finish_directory(aside: Path, target: Path) -> None:
    """Flush all files of ``aside`` to disk, write ``READY`` last, and make it appear as ``target`` in one step.

    Raises:
        InputError: Another process created ``target`` meanwhile.
    """
    _finish(aside)
    _rename(aside, target)


def refuse_existing(target: Path) -> None:
    """Refuse a place where something is already.

    Raises:
        InputError: ``target`` exists and is not an empty directory, or is a link, whose place nothing can take.
    """
    if is_ready(target):
        raise InputError(
            f"{target}: already holds a finished artifact; artifacts are written once, choose another path"
        )
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{target}: exists and is not an empty directory")
    if target.is_symlink():
        raise InputError(f"{target}: is a link to {os.readlink(target)}; expected a path where nothing is")


def is_ready(directory: Path) -> bool:
    """Whether ``directory`` was published whole."""
    return (Path(directory) / READY).is_file()


def holding(directory: Path) -> str:
    """``, it holds a log`` or what else the marks of a directory tell of it, for a message where another was expected.

    Example:
        >>> holding(Path("/"))
        ''
    """
    manifest = _keys(Path(directory) / MANIFEST)
    if "kind" in manifest:
        return f", it holds a sealed bundle of kind {manifest['kind']}"
    if "two_tower" in manifest:
        return ", it holds an index"
    return next((f", it holds {words}" for mark, words in _MARKS.items() if (Path(directory) / mark).exists()), "")


def _keys(manifest: Path) -> dict[str, Any]:
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        found = msgspec.json.decode(manifest.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksums(paths: Iterable[Path]) -> Iterator[str]:
    """The sha256 of each file, several at once."""
    with ThreadPoolExecutor() as pool:
        yield from pool.map(file_sha256, paths)


def file_entries(directory: Path, known: Mapping[str, str] | None = None) -> dict[str, FileEntry]:
    """Return the entry of every file below ``directory`` by its relative path; the manifest and READY are left out.

    Args:
        known: The sha256 of files that were read before, by relative path.
    """
    sums = dict(known or {})
    names = sorted(path.relative_to(directory).as_posix() for path in _files(directory))
    names = [name for name in names if name not in (MANIFEST, READY)]
    left = [name for name in names if name not in sums]
    sums |= zip(left, _checksums(directory / name for name in left), strict=True)
    return {name: FileEntry(sha256=sums[name], bytes=(directory / name).stat().st_size) for name in names}


def verify_files(directory: Path, entries: Mapping[str, FileEntry]) -> None:
    """Check presence, size and sha256 of each file; sizes first, since they cost nothing.

    Raises:
        ArtifactError: A file is missing, truncated or altered; the message names it.
    """
    directory = Path(directory)
    for name, entry in entries.items():
        path = directory / name
        if not path.is_file():
            raise ArtifactError(f"{path}: missing, expected {entry.bytes} bytes")
        if path.stat().st_size != entry.bytes:
            raise ArtifactError(f"{path}: truncated or altered, {path.stat().st_size} bytes, expected {entry.bytes}")
    for (name, entry), found in zip(entries.items(), _checksums(directory / name for name in entries), strict=True):
        if found != entry.sha256:
            raise ArtifactError(f"{directory / name}: wrong checksum, sha256 {found}, expected {entry.sha256}")


def read_manifest(directory: Path, type_: type[T]) -> T:
    """Read ``manifest.json`` of a finished artifact and check it against READY.

    Raises:
        WrongArtifactError: The directory is absent, no artifact, or one of another kind.
        ArtifactError: Its manifest is missing or altered.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise WrongArtifactError(f"{directory}: no such directory")
    if not is_ready(directory):
        raise WrongArtifactError(f"{directory}: unfinished, it has no {READY}{holding(directory)}")
    path = directory / MANIFEST
    mark = (directory / READY).read_bytes().strip()
    if mark == NO_MANIFEST.encode():
        raise WrongArtifactError(f"{directory}: has no {MANIFEST}{holding(directory)}")
    if not path.is_file():
        raise ArtifactError(f"{path}: missing")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest().encode() != mark:
        raise ArtifactError(f"{path}: wrong checksum, it is not the manifest that {READY} was written for")
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WrongArtifactError(f"{path}: not a manifest of the expected kind{holding(directory)}: {error}") from error


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by the indented JSON of ``value`` in one step, flushed to disk."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step, flushed to disk. A killed process leaves the old file whole.

    Directories above it are created.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Flush one file, or the names in one directory, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file or directory ``path``, waiting for it. It ends with its process."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def create_aside(target: Path) -> tuple[Path, int]:
    """Create a hidden sibling to write in, and lock it; what dead writers left is removed.

    Returns:
        The directory, and a handle that its writer closes at the end: whoever can lock a sibling knows that its writer
        is dead.
    """
    with file_lock(target.parent):
        for stale in target.parent.glob(f".{glob.escape(target.name)}.*{PARTIAL_SUFFIX}"):
            _remove_if_abandoned(stale)
        aside = target.parent / f".{target.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}"
        aside.mkdir()
        lock = os.open(aside, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return aside, lock


def _remove_if_abandoned(stale: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError, BlockingIOError):
        handle = os.open(stale, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(stale, ignore_errors=True)
        finally:
            os.close(handle)


def _finish(aside: Path) -> None:
    # Some writers leave files that only their owner reads; another user's service must read what this job published.
    mode = aside.stat().st_mode & 0o666
    for path in _files(aside):
        path.chmod(mode)
        fsync(path)
    manifest = aside / MANIFEST
    (aside / READY).write_text((file_sha256(manifest) if manifest.is_file() else NO_MANIFEST) + "\n")
    fsync(aside / READY)
    for path in aside.rglob("*"):
        if path.is_dir():
            fsync(path)
    fsync(aside)


def _rename(aside: Path, target: Path) -> None:
    try:
        os.rename(aside, target)
    except OSError as error:
        raise InputError(f"{target}: was created meanwhile by another process: {error.strerror}") from error
    fsync(target.parent)


def _files(directory: Path) -> list[Path]:
    return [path for path in sorted(Path(directory).rglob("*")) if path.is_file()]
