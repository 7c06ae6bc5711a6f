"""What a command tells of a whole log of updates without reading all of it again: damaged lines, ads that it brought.

    updates/surveyed         of each segment: how far it was read, what it looked like then, and what was found

A segment that is as it was is not opened; of one that grew only what is new is decoded. So a damaged line is found by
the first command after the damage, and a log of any length costs little more than its last segment.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import msgspec

from contracts.artifact import write_bytes
from indexing.update_manifest import read_log_manifest
from indexing.update_scan import STRETCH, SegmentScan
from indexing.update_segment import read_line

SURVEYED = "surveyed"
_CONTENT = b'"content":{'


class Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """One segment, up to its last whole batch.

    Args:
        bytes, crc: Of what was read.
        size, time: Of the file, as it was then.
        seq: Of the last line.
        damaged: Lines that could not be read; ``where`` tells of the first.
        has_content: Whether any line brings content.
    """

    bytes: int
    crc: int
    size: int
    time: int
    seq: int
    damaged: int
    where: str
    has_content: bool


@dataclass(frozen=True)
class Survey:
    """What a log holds.

    Args:
        damaged: Lines that cannot be read, in all.
        where: The first of them.
        segments: That bring content, and bytes of their whole batches.
    """

    damaged: int
    where: str
    segments: dict[Path, int]


def survey(directory: Path) -> Survey:
    """Survey the log in a directory; what was found is noted there, where that can be written.

    Raises:
        ArtifactError: Its manifest cannot be read.
        FileNotFoundError: A segment is missing.
    """
    manifest = read_log_manifest(directory)
    before = _noted(directory)
    after = {
        segment.name: _look(directory / segment.name, segment.first - 1, before.get(segment.name))
        for segment in (manifest.segments if manifest is not None else [])
    }
    if after != before:
        with suppress(OSError):
            write_bytes(directory / SURVEYED, msgspec.json.encode(after))
    return Survey(
        damaged=sum(one.damaged for one in after.values()),
        where=next((one.where for one in after.values() if one.damaged), ""),
        segments={directory / name: one.bytes for name, one in after.items() if one.has_content},
    )


def brought(found: Survey, ids: Iterable[str]) -> dict[str, int]:
    """Of these ads, those that the log brings content of, each with the latest ``valid_from``."""
    wanted, latest = set(ids), dict[str, int]()
    for path, size in found.segments.items() if wanted else ():
        for ad_id, valid_from in _with_content(path, size):
            if ad_id in wanted:
                latest[ad_id] = max(valid_from, latest.get(ad_id, valid_from))
    return latest


def _with_content(path: Path, size: int) -> Iterator[tuple[str, int]]:
    with open(path, "rb") as file:
        for line in file:
            size -= len(line)
            update = read_line(line.rstrip(b"\n")) if _CONTENT in line else None
            if update is not None and update.content is not None:
                yield update.ad_id, update.content.valid_from
            if size <= 0:
                return


def _look(path: Path, seq: int, before: Surveyed | None) -> Surveyed:
    status = path.stat()
    if before is not None and (status.st_size, status.st_mtime_ns) == (before.size, before.time):
        return before
    if before is None or _crc(path, 0, before.bytes) != before.crc:
        before = Surveyed(bytes=0, crc=0, size=0, time=0, seq=seq, damaged=0, where="", has_content=False)
    scanned = SegmentScan(path, before.bytes, before.seq)
    has_content = before.has_content
    for updates in scanned:
        has_content = has_content or any(update.content is not None for update in updates)
    where = f"{path}: line {scanned.damaged[0]}" if scanned.damaged else ""
    if where and before.bytes:
        where += f" after byte {before.bytes}"
    return Surveyed(
        bytes=before.bytes + scanned.size,
        crc=_crc(path, before.bytes, scanned.size, before.crc),
        size=status.st_size,
        time=status.st_mtime_ns,
        seq=scanned.seq,
        damaged=before.damaged + len(scanned.damaged),
        where=before.where or where,
        has_content=has_content,
    )


def _crc(path: Path, start: int, size: int, crc: int = 0) -> int:
    """Of ``size`` bytes from ``start`` on, or of what is there of them; ``crc`` is that of what stands before."""
    with open(path, "rb") as file:
        file.seek(start)
        while size > 0 and (data := file.read(min(size, STRETCH))):
            crc, size = crc32(data, crc), size - len(data)
    return crc


def _noted(directory: Path) -> dict[str, Surveyed]:
    try:
        return msgspec.json.decode((directory / SURVEYED).read_bytes(), type=dict[str, Surveyed])
    except (OSError, ValueError):
        return {}
