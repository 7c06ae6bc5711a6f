"""Pointers in Redis, moved in one transaction; and what a mirror remembers of them.

    {adsieve}:pointers             hash, scenario -> PointerRecord
    {adsieve}:releases:SCENARIO    hash, id -> Release
    redis.json                     in the mirror: which moves it followed, so that it never steps back with Redis

Redis may come back empty, as it was some time ago, or filled again from the mirror of a publisher that had slept. A
move that somebody made on purpose has a token of its own; a mirror follows each token once, and of what was merely
restored only what is further than it is. So a host never goes back unless somebody rolled back.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contracts.artifact import write_json
from contracts.errors import AdsieveError, ArtifactError
from contracts.names import is_name
from contracts.release import Release
from indexing.redis_connect import PREFIX, Connection
from indexing.redis_parts import MARKS
from indexing.store_files import Pointer, read_record

POINTERS, RELEASES = f"{PREFIX}pointers", f"{PREFIX}releases:"
STATE = "redis.json"
TRIES = 20
_REMEMBERED = 200


class PointerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A pointer as Redis holds it.

    Args:
        token: Of the move that somebody made.
        serial: How many moves there were; only compared for a restored record.
        restored: Nobody moved it: it came back from a mirror after Redis had lost it.
    """

    pointer: Pointer
    token: str
    serial: int
    restored: bool = False


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """What a mirror did for one scenario: tokens, last one last, and the serial of the last."""

    tokens: list[str]
    serial: int


class MovedError(AdsieveError):
    """Somebody else moved the pointer meanwhile."""


@dataclass(frozen=True)
class Seen:
    """The pointers as they were read: raw, and what could be decoded."""

    raw: Mapping[str, bytes]
    records: Mapping[str, PointerRecord]


def read_pointers(connection: Connection) -> Seen:
    """All pointers; a damaged one counts as none, and the next move replaces it."""
    with connection.naming("reading pointers"):
        found = connection.client.hgetall(POINTERS)
    raw = {name.decode("utf-8", "replace"): bytes(data) for name, data in found.items()}
    records = {}
    for scenario, data in raw.items():
        try:
            if is_name(scenario):
                records[scenario] = msgspec.json.decode(data, type=PointerRecord)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return Seen(raw, records)


def read_releases(connection: Connection, scenario: str, names: Sequence[str]) -> list[Release]:
    """Records of these releases, as far as Redis has them readable."""
    with connection.naming(f"reading releases of {scenario}"):
        found = connection.client.hmget(f"{RELEASES}{scenario}", list(names))
    releases = []
    for data in found:
        try:
            releases.append(msgspec.json.decode(data or b"", type=Release))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return releases


def move(
    connection: Connection,
    scenario: str,
    record: PointerRecord,
    *,
    seen: bytes | None,
    releases: Sequence[Release],
    parts: Sequence[str],
) -> None:
    """Replace a pointer in one transaction, while it is as ``seen`` and Redis holds ``parts`` whole.

    Raises:
        MovedError: It is not as seen, or a part is gone.
    """
    import redis

    for _ in range(TRIES):
        with (
            connection.naming(f"moving the pointer of {scenario}"),
            connection.client.pipeline() as transaction,
        ):
            marks = [f"{MARKS}{part}" for part in parts]
            transaction.watch(POINTERS, *marks)
            if transaction.hget(POINTERS, scenario) != seen:
                raise MovedError(f"{connection.name}: the pointer of {scenario} was moved meanwhile")
            if marks and transaction.exists(*marks) != len(set(marks)):
                raise MovedError(f"{connection.name}: a part of {scenario} was removed meanwhile")
            transaction.multi()
            for release in releases:
                transaction.hset(f"{RELEASES}{scenario}", release.release_id, msgspec.json.encode(release))
            transaction.hset(POINTERS, scenario, msgspec.json.encode(record))
            try:
                transaction.execute()
                return
            except redis.WatchError:  # another scenario's, most likely
                continue
    raise MovedError(f"{connection.name}: others move pointers all the time")


def next_record(pointer: Pointer, before: PointerRecord | None, followed: Followed | None) -> PointerRecord:
    """The record of a move that somebody makes now."""
    serial = max(before.serial if before is not None else 0, followed.serial if followed is not None else 0)
    return PointerRecord(pointer=pointer, token=secrets.token_hex(8), serial=serial + 1)


def follows(record: PointerRecord, followed: Followed | None, own: Pointer | None) -> bool:
    """Whether a mirror, whose own pointer is ``own``, follows what Redis says."""
    if own is None or followed is None:
        return True
    if record.token in followed.tokens:
        return False
    return not record.restored or record.serial > followed.serial


def is_behind(record: PointerRecord | None, followed: Followed | None, own: Pointer) -> bool:
    """Whether Redis lost a move that the mirror, whose pointer is ``own``, has followed."""
    if record is None:
        return True
    if followed is None or record.token not in followed.tokens:
        return False
    return record.token != followed.tokens[-1] or (record.pointer != own and record.restored)


def read_followed(root: Path) -> dict[str, Followed]:
    """What the mirror followed, by scenario."""
    path = root / STATE
    try:
        return read_record(path, dict[str, Followed]) if path.exists() else {}
    except ArtifactError:  # then it follows once more what it has followed, which changes nothing
        return {}


def remember(root: Path, scenario: str, record: PointerRecord) -> None:
    """Note that the mirror followed a move; after it did so."""
    known = read_followed(root)
    before = known[scenario].tokens if scenario in known else []
    tokens = [*(token for token in before if token != record.token), record.token][-_REMEMBERED:]
    write_json(root / STATE, {**known, scenario: Followed(tokens=tokens, serial=record.serial)})
