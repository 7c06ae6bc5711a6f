"""Whether Redis answers and is set up to keep what is published, and what a store holds."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contracts.console import shown_store
from contracts.errors import AdsieveError
from service.doctor.findings import Finding, size

OLDEST_REDIS = (6, 0)
KEEPS_ALL = "noeviction"
DAY_S = 86_400.0


def redis_findings(url: str) -> Iterator[Finding]:
    """A Redis server: reachable, new enough, keeping what it is given, through a restart too."""
    from indexing.redis_connect import connect

    section = "redis"
    try:
        connection = connect(url)
        with connection.naming("its state was asked for"):
            told: dict[str, Any] = connection.client.info()
    except AdsieveError as error:
        step = "start it, or correct --redis; ADSIEVE_REDIS_PASSWORD is its password, rediss:// asks for TLS"
        yield Finding(section=section, name="server", standing="fail", found=str(error), next_step=step)
        return
    version = str(told.get("redis_version", "?"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    is_old = numbers < OLDEST_REDIS
    yield Finding(
        section=section,
        name="server",
        standing="warn" if is_old else "ok",
        found=f"{connection.name}: version {version}, {size(int(told.get('used_memory', 0)))} in use",
        next_step="run Redis 6 or newer: adsieve is tested with 6.2 and 7.0" if is_old else None,
        facts={"url": connection.name, "version": version, "used_memory": told.get("used_memory")},
    )
    yield _persistence(told, _setting(connection, "save"))
    yield _eviction(str(told.get("maxmemory_policy", "?")), int(told.get("maxmemory", 0)))


def store_findings(spec: str, local: Path | None) -> Iterator[Finding]:
    """The releases of a store: what serves each scenario, how old its data is, and what is damaged."""
    from indexing.cli_options import asked_store
    from indexing.listing import listed
    from indexing.store_recovery import is_whole

    section, shown = "store", shown_store(spec)
    try:
        store, mirror = asked_store(spec, local)
        scenarios = store.scenarios()
    except AdsieveError as error:
        yield Finding(section=section, name=shown, standing="fail", found=str(error), next_step="correct --store")
        return
    if mirror is not None:
        step = "start the server or correct --store; what follows is what this host mirrors"
        yield Finding(section=section, name=shown, standing="fail", found=mirror.reason, next_step=step)
    if not scenarios:
        step = "publish one: `adsieve index publish --help`; `adsieve demo` makes a whole store to look at"
        yield Finding(section=section, name=shown, standing="note", found="holds no release", next_step=step)
    for scenario in scenarios:
        try:
            newest = listed(store.local, scenario, datetime.now(UTC))[0]
        except (AdsieveError, IndexError) as error:
            step = f"adsieve index rollback --scenario {scenario} --store {shown}, or publish again"
            found = str(error) or "its pointer is lost"
            yield Finding(section=section, name=scenario, standing="fail", found=found, next_step=step)
            continue
        age = newest.watermark_age_s
        data = "data of unknown age" if age is None else f"data {age / DAY_S:.1f} days old"
        whole = newest.state == "current" and is_whole(store.local.root, newest.release)
        yield Finding(
            section=section,
            name=scenario,
            standing="ok" if whole else "fail",
            found=f"{newest.release.release_id} serves, {data}"
            if whole
            else f"{newest.release.release_id} is not whole",
            next_step=None if whole else f"adsieve index rollback --scenario {scenario} --store {shown}",
            facts={"release": newest.release.release_id, "watermark": newest.watermark},
        )


def _persistence(told: dict[str, Any], save: str | None) -> Finding:
    appends, saves = bool(told.get("aof_enabled")), bool(save) if save is not None else None
    ways = [name for name, on in (("an append-only file", appends), ("snapshots", saves)) if on]
    if ways or saves is None:
        found = f"{' and '.join(ways)} on disk" if ways else "no append-only file; whether it saves it does not tell"
        return Finding(section="redis", name="persistence", standing="ok" if ways else "note", found=found)
    return Finding(
        section="redis",
        name="persistence",
        standing="warn",
        found="none: a restart loses pointers and updates, and hosts serve from their mirrors until a publish",
        next_step="redis-cli CONFIG SET appendonly yes, and the same in redis.conf",
    )


def _eviction(policy: str, limit: int) -> Finding:
    found = f"{policy}, {f'at most {size(limit)}' if limit else 'no limit of memory'}"
    evicts = policy != KEEPS_ALL
    return Finding(
        section="redis",
        name="maxmemory policy",
        standing="warn" if evicts else "ok",
        found=found + (": parts of a release vanish when memory is short" if evicts else ""),
        next_step=f"redis-cli CONFIG SET maxmemory-policy {KEEPS_ALL}, and the same in redis.conf" if evicts else None,
        facts={"policy": policy, "maxmemory": limit},
    )


def _setting(connection: Any, name: str) -> str | None:
    """A setting of the server; None where it may not be asked, as of many that are rented."""
    try:
        with connection.naming("a setting was asked for"):
            found = {_plain(key): _plain(value) for key, value in connection.client.config_get(name).items()}
    except AdsieveError:
        return None
    return found.get(name)


def _plain(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
