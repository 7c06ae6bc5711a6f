"""What a log of updates consists of: its manifest, ``log.json``, the rules that any such file keeps, and its repair."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from contracts.artifact import write_json
from contracts.errors import ArtifactError
from indexing.update_given import read_given
from indexing.update_scan import SegmentScan

log = logging.getLogger(__name__)

MANIFEST = "log.json"
WAY_OUT = (
    "restore the directory from a backup; the next `adsieve index update` builds log.json again where that can be "
    "done, and with --new-log begins another log"
)


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the log; ``first`` is the least number that it can hold."""

    name: str
    first: int


class LogManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the log consists of.

    Args:
        log: Its id.
        segments: In order; the last one is appended to.
        floor: Content up to this number, and old state that every kept index holds, may have been dropped.
    """

    log: str
    segments: list[Segment]
    floor: int = 0


class _Stored(LogManifest, frozen=True, kw_only=True):
    """With the CRC-32 of the rest, which says that a floor or a number is the one that was written.

    A manifest of an earlier version has none, and earlier versions pass over it.
    """

    crc: int | None = None


def write_log_manifest(directory: Path, manifest: LogManifest) -> None:
    """Replace the manifest of the log in a directory, in one step."""
    write_json(directory / MANIFEST, _Stored(**_fields(manifest), crc=_crc(manifest)))


def _fields(manifest: LogManifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in LogManifest.__struct_fields__}


def _crc(manifest: LogManifest) -> int:
    return crc32(msgspec.json.encode(_fields(manifest), order="sorted"))


def read_log_manifest(directory: Path) -> LogManifest | None:
    """What the log in a directory consists of now; None before the first append.

    Raises:
        ArtifactError: It cannot be read, or is gone while segments are there.
    """
    path = directory / MANIFEST
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_Stored)
        manifest = LogManifest(**_fields(stored))
        if stored.crc is not None and stored.crc != _crc(manifest):
            raise ValueError(f"wrong checksum, crc {stored.crc}, expected {_crc(manifest)}")
        check_manifest(manifest)
        return manifest
    except FileNotFoundError:
        _require_nothing(path)
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: not the manifest of an update log: {error}; {WAY_OUT}") from error


def rebuilt_manifest(directory: Path) -> LogManifest | None:
    """A manifest made of the segments that are here and the note of id and floor; None where that would be a guess."""
    given = read_given(directory)
    names = sorted(path.name for path in directory.glob("*.jsonl") if is_segment(path.name))
    segments = [Segment(name=name, first=int(name[:16])) for name in names]
    if given is None or not segments or not _are_apart(directory, segments):
        return None
    return LogManifest(log=given.log, segments=segments, floor=given.floor)


def is_segment(name: object) -> bool:
    """Whether a segment may have this name: a plain one, of its first number and some digits."""
    return isinstance(name, str) and re.fullmatch(r"[0-9]{16}-[0-9a-f]{8}\.jsonl", name) is not None


def check_manifest(manifest: LogManifest) -> None:
    """Refuse what no log consists of, with a ValueError."""
    if not manifest.log or not manifest.segments or manifest.floor < 0:
        raise ValueError(f"expected an id, segments and a floor of at least 0, got {manifest}")
    for segment in manifest.segments:
        if not is_segment(segment.name) or segment.first < 1:
            raise ValueError(f"expected names as 0000000000000001-0123abcd.jsonl and first numbers, got {segment}")
    firsts = [segment.first for segment in manifest.segments]
    if firsts != sorted(firsts):
        raise ValueError(f"segments: expected rising first numbers, got {firsts}")


def _are_apart(directory: Path, segments: Sequence[Segment]) -> bool:
    """Whether each segment ends before the next one; not where a compaction was killed between two sets of them."""
    ends = [SegmentScan(directory / one.name, seq=one.first - 1).finish().seq for one in segments]
    return all(end < following.first for end, following in zip(ends, segments[1:], strict=False))


def _require_nothing(path: Path) -> None:
    """Before the first append there is nothing but, after a kill, an empty segment."""
    if any(segment.stat().st_size for segment in path.parent.glob("*.jsonl")) and not path.exists():
        raise ArtifactError(f"{path}: missing, but there are segments of an update log beside it; {WAY_OUT}")
