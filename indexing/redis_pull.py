"""Brings a part from Redis into the mirror: into a directory aside, every checksum compared, then one rename.

The rename does not wait for the disk, so that a new release serves soon; until it has been flushed, a note beside says
so. After a crash of the machine, which alone can lose what was not flushed, every file under such a note is compared
with its checksum again, and a damaged part is removed and pulled anew. So is one that somebody found damaged.

    pulls/                        unfinished pulls
    unsettled/KIND@VERSION        the machine's boot in which this part was pulled, or that somebody doubts it; removed
                                  once it is on disk, as its checksums say
"""

import errno
import hashlib
import logging
import os
import secrets
import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec

from contracts.artifact import MANIFEST, READY, FileEntry, fsync, read_manifest, verify_files
from contracts.errors import AdsieveError, ArtifactError
from indexing.redis_chunks import BUFFERS, WrongLengthError, received
from indexing.redis_connect import Connection
from indexing.redis_parts import Between, Mark, Part, complain, read_mark
from indexing.store_files import remove_directory

log = logging.getLogger(__name__)

PULLS, UNSETTLED = "pulls", "unsettled"
DOUBTED = "doubted"


class DamagedPartError(ArtifactError):
    """What Redis holds of a part is damaged; the next publisher that has it uploads it again.

    Args:
        upload: Id of the upload, None where even its mark is damaged.
    """

    def __init__(self, message: str, *, part: str, upload: str | None) -> None:
        super().__init__(message)
        self.part, self.upload = part, upload


class _Manifest(msgspec.Struct):
    version: str
    files: dict[str, FileEntry]


def pull(connection: Connection, part: Part, root: Path, between: Between, *, refused: dict[str, str]) -> None:
    """Bring one part in; under the lock of the mirror's puller.

    Args:
        refused: Uploads that were found damaged here, by id, with what was wrong; they are not fetched again.

    Raises:
        DamagedPartError: It is not in Redis whole; the mirror is as before.
        RedisError: Redis failed; the mirror is as before.
        AdsieveError: The files cannot be written.
    """
    mark = _mark(connection, part)
    if mark.upload in refused:
        raise DamagedPartError(refused[mark.upload], part=part.name, upload=mark.upload)
    aside = root / PULLS / f"{part.path.name}.{secrets.token_hex(4)}"
    try:
        aside.mkdir(parents=True)
        _fetch(connection, part, mark, aside, between)
        _check(connection, part, mark, aside)
        _put_in_place(part, aside, root)
    except DamagedPartError as error:
        refused[mark.upload] = str(error)
        complain(connection, part.name, mark.upload)
        raise
    except OSError as error:
        raise AdsieveError(f"{part.path}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def doubt(part: Part, root: Path) -> None:
    """Have the checksums of a part compared again by the next :func:`settle`."""
    _note(part, root, DOUBTED)


def settle(root: Path) -> None:
    """Flush to disk what was pulled; check it first where the machine was restarted since, or somebody doubts it."""
    for note in (root / UNSETTLED).glob("[!.]*"):
        kind, version = note.name.split("@", 1)
        path = root / kind / version
        with suppress(FileNotFoundError):
            if note.read_text() != boot_id():
                _check_again(path)
            if path.is_dir():
                _flush(path)
        note.unlink(missing_ok=True)


def remove_unfinished(root: Path) -> None:
    """Remove what dead pullers left; under the lock of the mirror's puller."""
    shutil.rmtree(root / PULLS, ignore_errors=True)


def boot_id() -> str:
    """Which start of this machine it is."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _mark(connection: Connection, part: Part) -> Mark:
    try:
        mark = read_mark(connection, part.name)
    except ArtifactError as error:
        raise DamagedPartError(str(error), part=part.name, upload=None) from error
    if mark is None:
        message = f"{connection.name}: {part.name} is not there; the next publish from where it was made uploads it"
        raise DamagedPartError(message, part=part.name, upload=None)
    for file in mark.files:
        path = PurePosixPath(file.name)
        if path.is_absolute() or ".." in path.parts or file.name == READY:
            raise _damaged(connection, part, mark, f"file name {file.name!r}")
    return mark


def _fetch(connection: Connection, part: Part, mark: Mark, aside: Path, between: Between) -> None:
    """Write the files and compare the checksum of each, two threads beside this one, while the next chunks come."""
    hashes = [hashlib.sha256() for _ in mark.files]
    with (
        _created(mark, aside) as files,
        ThreadPoolExecutor(1) as writer,
        ThreadPoolExecutor(1) as summer,
        connection.naming(f"fetching {part.name}"),
    ):
        in_work: deque[tuple[Future[None], Future[None]]] = deque()
        try:
            with closing(received(connection, mark.chunks(part.name))) as chunks:
                for chunk, content in chunks:
                    written = writer.submit(_write, files[chunk.file], content)
                    in_work.append((written, summer.submit(hashes[chunk.file].update, content)))
                    if len(in_work) == BUFFERS:
                        _wait(in_work.popleft())
                    between()
        except WrongLengthError as error:
            raise _damaged(connection, part, mark, str(error)) from error
        for one in in_work:
            _wait(one)
    for file, sha256 in zip(mark.files, (one.hexdigest() for one in hashes), strict=True):
        if sha256 != file.sha256:
            what = f"{file.name}: wrong checksum, sha256 {sha256}, expected {file.sha256}"
            raise _damaged(connection, part, mark, what)


def _write(file: BinaryIO, content: memoryview) -> None:
    file.write(content)


def _wait(in_work: tuple[Future[None], Future[None]]) -> None:
    for one in in_work:
        one.result()


@contextmanager
def _created(mark: Mark, aside: Path) -> Iterator[list[BinaryIO]]:
    with ExitStack() as stack:
        files: list[BinaryIO] = []
        for file in mark.files:
            path = aside / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            files.append(stack.enter_context(path.open("wb")))
        yield files


def _check(connection: Connection, part: Part, mark: Mark, aside: Path) -> None:
    """The manifest that came is of this version and says of each file what the mark says."""
    try:
        manifest = msgspec.json.decode((aside / MANIFEST).read_bytes(), type=_Manifest)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(connection, part, mark, f"{MANIFEST}: {error}") from error
    entries = {file.name: (file.sha256, file.bytes) for file in mark.files}
    sha256, _ = entries.pop(MANIFEST)
    if manifest.version != part.path.name:
        raise _damaged(connection, part, mark, f"{MANIFEST} is of version {manifest.version}")
    if entries != {name: (entry.sha256, entry.bytes) for name, entry in manifest.files.items()}:
        raise _damaged(connection, part, mark, f"{MANIFEST} is of other files")
    (aside / READY).write_text(sha256 + "\n")


def _put_in_place(part: Part, aside: Path, root: Path) -> None:
    _note(part, root, boot_id())
    part.path.parent.mkdir(parents=True, exist_ok=True)
    if part.path.exists() and not part.is_here:
        remove_directory(part.path)
    try:
        os.rename(aside, part.path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # else a publisher on this host was faster
            raise


def _note(part: Part, root: Path, text: str) -> None:
    (root / UNSETTLED).mkdir(parents=True, exist_ok=True)
    (root / UNSETTLED / part.name.replace("/", "@")).write_text(text)


def _check_again(path: Path) -> None:
    try:
        verify_files(path, read_manifest(path, _Manifest).files)
    except (ArtifactError, OSError) as error:
        log.error("a part of the mirror is damaged, so it is removed and pulled again: %s", error)
        with suppress(FileNotFoundError):
            remove_directory(path)


def _flush(path: Path) -> None:
    for found in path.rglob("*"):
        fsync(found)
    fsync(path)
    fsync(path.parent)


def _damaged(connection: Connection, part: Part, mark: Mark, what: str) -> DamagedPartError:
    message = f"{connection.name}: {part.name} is damaged there, so it is not taken: {what}; publish it again"
    return DamagedPartError(message, part=part.name, upload=mark.upload)
