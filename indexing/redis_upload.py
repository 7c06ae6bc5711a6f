"""Brings parts of the mirror into Redis: those that it lacks, holds incompletely, or that a host found damaged."""

import hashlib
import mmap
import os
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from contracts.artifact import MANIFEST, READY, FileEntry, file_sha256
from contracts.errors import ArtifactError
from indexing.redis_chunks import send
from indexing.redis_connect import Connection, RedisError
from indexing.redis_parts import (
    CHUNK_BYTES,
    COMPLAINTS,
    LEASES,
    MARKS,
    UPLOADS,
    Between,
    Chunk,
    Mark,
    Part,
    PartFile,
    Upload,
    parse_mark,
)

LEASE_S, LEASE_BYTES = 120, 16 << 20
"""How long an upload counts as alive, and after how many bytes that is said again."""

# KEYS: mark, complaints, chunks; ARGV: part, old mark or '', new mark, lengths of the chunks
_COMPLETE = """
for place = 3, #KEYS do
  if redis.call('STRLEN', KEYS[place]) ~= tonumber(ARGV[place + 1]) then return 'lost' end
end
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[2] then return 'other' end
redis.call('SET', KEYS[1], ARGV[3])
redis.call('HDEL', KEYS[2], ARGV[1])
return 'done'
"""

# KEYS: uploads, lease, mark, chunks; ARGV: upload
_SWEEP = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
local mark = redis.call('GET', KEYS[3])
if mark and string.find(mark, ARGV[1], 1, true) then return 0 end
for place = 4, #KEYS do redis.call('UNLINK', KEYS[place]) end
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
"""


def ensure(
    connection: Connection, parts: Sequence[Part], between: Between, *, verified: Collection[str] = ()
) -> list[str]:
    """Upload what of ``parts`` Redis does not hold whole.

    What it holds is judged by marks, lengths of chunks and complaints of hosts, which costs next to nothing.

    Args:
        verified: Names of parts whose bytes were compared with their checksums just now. Those of others are compared
            while they are sent.

    Returns:
        Names of the parts that were uploaded.

    Raises:
        ArtifactError: The mirror's copy of one is damaged.
        RedisError: Redis failed; what was uploaded of an unfinished part is no part.
    """
    with connection.naming("looking for what it lacks"):
        marks = connection.client.mget([f"{MARKS}{part.name}" for part in parts]) if parts else []
        complaints = connection.client.hmget(COMPLAINTS, [part.name for part in parts]) if parts else []
    uploaded = []
    for part, mark, complaint in zip(parts, marks, complaints, strict=True):
        if mark is None or not _is_sound(connection, part, mark, complaint):
            _upload(connection, part, mark or b"", between, is_verified=part.name in verified)
            uploaded.append(part.name)
    return uploaded


def sweep(connection: Connection) -> int:
    """Remove uploads that no mark names and whose publisher is dead; return how many there were."""
    with connection.naming("removing what dead publishers left"):
        script = connection.client.register_script(_SWEEP)
        removed = 0
        for name, data in connection.client.hgetall(UPLOADS).items():
            upload_id = name.decode()
            upload = msgspec.json.decode(data, type=Upload)
            chunks = [chunk.key for chunk in upload.chunks(upload_id)]
            keys = [UPLOADS, f"{LEASES}{upload_id}", f"{MARKS}{upload.part}", *chunks]
            removed += int(script(keys=keys, args=[upload_id]))
        return removed


def _is_sound(connection: Connection, part: Part, data: bytes, complaint: bytes | None) -> bool:
    try:
        mark = parse_mark(connection, part.name, data)
    except ArtifactError:
        return False
    if complaint is not None and complaint.decode() == mark.upload:
        return False
    chunks = mark.chunks(part.name)
    with connection.naming(f"looking at {part.name}"):
        pipeline = connection.client.pipeline(transaction=False)
        for chunk in chunks:
            pipeline.strlen(chunk.key)
        return pipeline.execute() == [chunk.bytes for chunk in chunks]


def _upload(connection: Connection, part: Part, old: bytes, between: Between, *, is_verified: bool) -> None:
    upload_id, files = secrets.token_hex(12), _files(part.path)
    mark = Mark(upload=upload_id, chunk_bytes=CHUNK_BYTES, files=files).sealed()
    chunks = mark.chunks(part.name)
    upload = Upload(part=part.name, chunk_bytes=CHUNK_BYTES, sizes=[file.bytes for file in files])
    with connection.naming(f"uploading {part.name}"):
        connection.client.set(f"{LEASES}{upload_id}", part.name, ex=LEASE_S)
        connection.client.hset(UPLOADS, upload_id, msgspec.json.encode(upload))
        with _open_files(part.path, files, is_verified=is_verified) as contents:
            send(connection, _commands(upload_id, chunks, contents), between)
        keys = [f"{MARKS}{part.name}", COMPLAINTS, *(chunk.key for chunk in chunks)]
        sizes = [chunk.bytes for chunk in chunks]
        script = connection.client.register_script(_COMPLETE)
        state = script(keys=keys, args=[part.name, old, msgspec.json.encode(mark), *sizes])
        connection.client.delete(f"{LEASES}{upload_id}")
        sweep(connection)  # of this upload, where another publisher was faster, else of the one before it
    if state == b"lost":
        raise RedisError(
            f"{connection.name}: chunks of {part.name} were gone before the last was there: evicted, or removed since "
            f"this publisher stood still for {LEASE_S} s; see its maxmemory, and publish again"
        )


def _commands(upload_id: str, chunks: Sequence[Chunk], contents: Sequence[memoryview]) -> Iterator[tuple[Any, ...]]:
    """SET of each chunk; the lease is renewed every few of them."""
    sent = 0
    for chunk in chunks:
        yield "SET", chunk.key, contents[chunk.file][chunk.start : chunk.start + chunk.bytes]
        sent += chunk.bytes
        if sent > LEASE_BYTES:
            yield "EXPIRE", f"{LEASES}{upload_id}", LEASE_S
            sent = 0


def _files(directory: Path) -> list[PartFile]:
    """Every file with its checksum: the manifest's own, which are compared with the bytes while these are sent."""
    try:
        manifest = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=_Files)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{directory / MANIFEST}: cannot be read: {error}") from error
    names = {name: entry for name, entry in manifest.files.items() if name not in (MANIFEST, READY)}
    path = directory / MANIFEST
    names[MANIFEST] = FileEntry(sha256=file_sha256(path), bytes=path.stat().st_size)
    return [PartFile(name=name, bytes=entry.bytes, sha256=entry.sha256) for name, entry in names.items()]


class _Files(msgspec.Struct):
    files: Mapping[str, FileEntry]


@contextmanager
def _open_files(directory: Path, files: list[PartFile], *, is_verified: bool) -> Iterator[list[memoryview]]:
    """Map files; unless they are verified, checksums are computed beside the block, which fails where one is wrong."""
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        contents = [_map(directory / file.name, file, stack) for file in files]
        unchecked = [] if is_verified else list(zip(files, contents, strict=True))
        sums: list[Future[str]] = [pool.submit(_sha256, content) for _, content in unchecked]
        yield contents
        for (file, _), found in zip(unchecked, sums, strict=True):
            if found.result() != file.sha256:
                raise ArtifactError(f"{directory / file.name}: wrong checksum, publish the original again")
        for content in contents:
            content.release()


def are_links(part: Part, source: Path) -> bool:
    """Whether the files of a part are those of ``source``, not copies: what was verified of the one holds for both."""
    try:
        return all(os.path.samefile(part.path / file.name, source / file.name) for file in _files(part.path))
    except (OSError, ArtifactError):
        return False


def _map(path: Path, file: PartFile, stack: ExitStack) -> memoryview:
    try:
        opened = stack.enter_context(path.open("rb"))
        size = path.stat().st_size
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
    if size != file.bytes:
        raise ArtifactError(f"{path}: truncated or altered, {size} bytes, expected {file.bytes}")
    return memoryview(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)) if size else memoryview(b"")


def _sha256(content: memoryview) -> str:
    return hashlib.sha256(content).hexdigest()
