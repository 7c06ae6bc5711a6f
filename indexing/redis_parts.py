"""Bundles and indexes in Redis: files in chunks, and a mark that makes a snapshot count once all of it is there.

    {adsieve}:mark:KIND/VERSION                   Mark: files with checksums, and the id of the upload that is valid
    {adsieve}:chunk:KIND/VERSION:UPLOAD:FILE.N    bytes of one file; FILE its place in the mark
    {adsieve}:uploads                             hash, upload id -> Upload, written before the first chunk of it
    {adsieve}:lease:UPLOAD                        its publisher lives; expires by itself
    {adsieve}:complaints                          hash, KIND/VERSION -> id of the upload that a host found damaged

An upload that no mark names and whose publisher is dead is an orphan, which the next publish or prune removes. A mark
is written only while every chunk has its length. Whoever reads compares every file with its checksum; who finds one
damaged leaves a complaint, and the next publisher that has the part uploads it again under another id.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contracts.artifact import is_ready
from contracts.errors import ArtifactError
from contracts.release import Release
from indexing.redis_connect import PREFIX, Connection
from indexing.store_files import BUNDLES, INDEXES

CHUNK_BYTES = 4 << 20
MARKS, UPLOADS, COMPLAINTS, LEASES = (f"{PREFIX}{name}" for name in ("mark:", "uploads", "complaints", "lease:"))

Between = Callable[[], None]
"""Called between two chunks of a long transfer."""


class PartFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a snapshot."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Chunk:
    """Bytes of one file, under one key; ``file`` is its place in the mark."""

    key: str
    file: int
    start: int
    bytes: int


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """Where the chunks of an upload are."""

    part: str
    chunk_bytes: int
    sizes: list[int]

    def chunks(self, upload: str) -> list[Chunk]:
        """All, in the order of files and bytes."""
        return [
            Chunk(
                f"{PREFIX}chunk:{self.part}:{upload}:{file}.{number}", file, start, min(self.chunk_bytes, size - start)
            )
            for file, size in enumerate(self.sizes)
            for number, start in enumerate(range(0, size, self.chunk_bytes))
        ]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that is whole. ``checksum`` is of the rest of the mark, and with it of every file's checksum."""

    upload: str
    chunk_bytes: int
    files: list[PartFile]
    checksum: str = ""

    def chunks(self, part: str) -> list[Chunk]:
        """All chunks of the part."""
        sizes = [file.bytes for file in self.files]
        return Upload(part=part, chunk_bytes=self.chunk_bytes, sizes=sizes).chunks(self.upload)

    def sealed(self) -> "Mark":
        """With its checksum."""
        plain = msgspec.structs.replace(self, checksum="")
        return msgspec.structs.replace(plain, checksum=hashlib.sha256(msgspec.json.encode(plain)).hexdigest())


@dataclass(frozen=True)
class Part:
    """One artifact in the mirror.

    Args:
        name: ``bundles/VERSION`` or ``indexes/VERSION``.
        path: Its directory.
    """

    name: str
    path: Path

    @property
    def is_here(self) -> bool:
        """Whether the mirror holds it whole."""
        return is_ready(self.path)


def part_names(release: Release) -> list[str]:
    """Names of the parts of a release."""
    bundles = [name for name in (release.two_tower, release.heavy) if name is not None]
    return [*(f"{BUNDLES}/{name}" for name in bundles), f"{INDEXES}/{release.index}"]


def parts_of(root: Path, release: Release) -> list[Part]:
    """The parts of a release, in the store at ``root`` or to be brought there."""
    return [Part(name, root / name) for name in part_names(release)]


def read_mark(connection: Connection, part: str) -> Mark | None:
    """The mark of a part; None where Redis does not hold it whole.

    Raises:
        ArtifactError: The mark is damaged.
    """
    with connection.naming(f"looking for {part}"):
        data = connection.client.get(f"{MARKS}{part}")
    return None if data is None else parse_mark(connection, part, bytes(data))


def parse_mark(connection: Connection, part: str, data: bytes) -> Mark:
    """Read a mark; ArtifactError where it is damaged."""
    try:
        mark = msgspec.json.decode(data, type=Mark)
        if mark.sealed() == mark:
            return mark
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise ArtifactError(f"{connection.name}: the mark of {part} is damaged; publish it again")


def complain(connection: Connection, part: str, upload: str) -> None:
    """Tell publishers that an upload is damaged."""
    with connection.naming(f"reporting that {part} is damaged"):
        connection.client.hset(COMPLAINTS, part, upload)
