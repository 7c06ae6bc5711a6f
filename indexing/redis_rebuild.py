"""Pointers that Redis lost while it still has records of releases: told, and rebuilt from these for a host without one.

A host that mirrors the scenario has the pointer itself, with what is pinned, and its next publish brings it back.
"""

import secrets
from collections.abc import Sequence

import msgspec

from contracts.errors import ArtifactError
from contracts.names import is_name
from contracts.release import Release
from indexing.redis_connect import Connection
from indexing.redis_parts import MARKS, part_names
from indexing.redis_pointers import RELEASES, PointerRecord, Seen, move
from indexing.store_files import Pointer
from indexing.store_recovery import chain


def lost_pointers(connection: Connection, seen: Seen) -> list[str]:
    """Scenarios that Redis has releases of and no pointer, sorted."""
    with connection.naming("looking for releases"):
        keys = [bytes(key) for key in connection.client.scan_iter(match=f"{RELEASES}*", count=1000)]
    names = {key.decode("utf-8", "replace").removeprefix(RELEASES) for key in keys}
    return sorted(name for name in names - seen.raw.keys() if is_name(name))


def loss(connection: Connection, scenario: str) -> ArtifactError:
    """What to raise or to tell of one of them."""
    return ArtifactError(
        f"{connection.name}: the pointer of {scenario} is missing, and there are releases of it; the next `adsieve "
        "index publish` restores it, best from a host that mirrors it"
    )


def rebuild(connection: Connection, scenario: str) -> Sequence[str]:
    """Point to the release that was published last and is whole, and those before it; returns their ids, if any.

    It counts as restored: no host that has a pointer of its own goes back to it.
    """
    releases = _whole(connection, scenario)
    names = chain(releases)
    if names:
        pointer = Pointer(release=names[0], history=names[:0:-1])
        record = PointerRecord(pointer=pointer, token=secrets.token_hex(8), serial=1, restored=True)
        move(connection, scenario, record, seen=None, releases=[], parts=part_names(releases[names[0]]))
    return names


def _whole(connection: Connection, scenario: str) -> dict[str, Release]:
    """Releases whose record can be read and whose parts are there, published first to last."""
    with connection.naming(f"reading releases of {scenario}"):
        found = connection.client.hvals(f"{RELEASES}{scenario}")
    releases = []
    for data in found:
        try:
            releases.append(msgspec.json.decode(data, type=Release))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    with connection.naming(f"looking for parts of {scenario}"):
        return {
            one.release_id: one
            for one in sorted(releases, key=lambda one: one.number)
            if all(connection.client.exists(f"{MARKS}{part}") for part in part_names(one))
        }
