"""What a log of updates consists of: its manifest, ``log.json``, and the rules that any such file keeps."""

import re

import msgspec

MANIFEST = "log.json"


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
