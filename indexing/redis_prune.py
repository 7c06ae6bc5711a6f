"""Removes from Redis what no pointer there names: records of releases, marks of parts, and then their chunks."""

import msgspec

from contracts.names import is_name
from indexing.redis_connect import Connection
from indexing.redis_parts import COMPLAINTS, MARKS, UPLOADS, Upload, part_names
from indexing.redis_pointers import POINTERS, RELEASES, TRIES, read_pointers, read_releases
from indexing.redis_rebuild import lost_pointers
from indexing.redis_upload import sweep


def prune_redis(connection: Connection) -> int:
    """Remove what the pointers in Redis do not need; return how many uploads went.

    Killed at any moment, only what nobody points to is gone. A pointer that is moved meanwhile starts it over. Nothing
    is removed while a pointer cannot be read or is lost.
    """
    for _ in range(TRIES):
        if _forget(connection):
            break
    return sweep(connection)


def _forget(connection: Connection) -> bool:
    """Forget releases and parts in one transaction; false where a pointer moved meanwhile."""
    import redis

    seen = read_pointers(connection)
    if set(seen.records) != set(seen.raw) or lost_pointers(connection, seen):
        return True
    kept = {name: set(record.pointer.kept) for name, record in seen.records.items()}
    used: set[str] = set()
    for scenario, names in kept.items():
        releases = read_releases(connection, scenario, sorted(names))
        if len(releases) != len(names):
            return True
        used |= {name for release in releases for name in part_names(release)}
    with connection.naming("removing releases"), connection.client.pipeline() as transaction:
        transaction.watch(POINTERS)
        if {name.decode(): data for name, data in transaction.hgetall(POINTERS).items()} != seen.raw:
            return False
        uploads = [msgspec.json.decode(data, type=Upload) for data in transaction.hvals(UPLOADS)]
        unused = sorted({upload.part for upload in uploads} - used)
        old = {scenario: transaction.hkeys(f"{RELEASES}{scenario}") for scenario in kept if is_name(scenario)}
        transaction.multi()
        for part in unused:
            transaction.delete(f"{MARKS}{part}")
            transaction.hdel(COMPLAINTS, part)
        for scenario, ids in old.items():
            gone = [one for one in ids if one.decode() not in kept[scenario]]
            if gone:
                transaction.hdel(f"{RELEASES}{scenario}", *gone)
        try:
            transaction.execute()
        except redis.WatchError:
            return False
        return True
