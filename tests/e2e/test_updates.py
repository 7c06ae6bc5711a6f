"""Updates, releases and rollbacks as several service processes see them, whatever dies meanwhile."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from contracts.artifact import read_manifest
from contracts.release import IndexManifest
from indexing.redis_connect import RedisError


def test_processes_of_one_host_have_every_update_and_take_over_from_a_killed_one(
    parts: Path, tmp_path: Path, watch: Any, make_host: Callable, hosts: ModuleType
) -> None:
    site = hosts.Site(tmp_path / "store", None, parts, watch)
    first = site.publish()
    site.hosts = [make_host(tmp_path / "store"), make_host(tmp_path / "store")]
    for host in site.hosts:
        watch.follow(host.wait_ready())
    site.take_down("ad-1")
    site.bring_new_ad()

    writer = next(host for host in site.hosts if host.applies(first))
    writer.kill()
    site.hosts.remove(writer)
    site.take_down("ad-2")
    assert site.hosts[0].applies(first)
    writer.start()
    watch.gone("ad-2", [writer])
    site.hosts.append(writer.wait_ready())

    merged = tmp_path / "merged"
    hosts.adsieve("index", "build", "--ads", parts / "ads", *site.bundles("other_"), *site.where, "--out", merged)
    site.expect(merged)
    manifest = read_manifest(merged, IndexManifest)
    assert manifest.updates is not None
    assert manifest.updates == site.store.update_log().end
    assert manifest.num_ads == len(hosts.ADS) + 1
    reason = ["--override", "towers of random weights"]
    hosts.adsieve("index", "publish", *site.bundles("other_"), "--index", merged, *reason, *site.where)
    site.wait_for(manifest.version)
    site.take_down("ad-3")

    assert site.hosts[1].roll_back()["index"] == first
    site.wait_for(first)
    everything = {*hosts.ADS, "new-ad"}
    for host in site.hosts:
        assert host.shown(everything) == everything - {"ad-1", "ad-2", "ad-3"}
        assert host.faults() == []


def test_hosts_of_one_redis_serve_on_through_its_failures(
    parts: Path, tmp_path: Path, watch: Any, make_host: Callable, redis_server: Any, hosts: ModuleType
) -> None:
    site = hosts.Site(redis_server.url, tmp_path / "publisher", parts, watch)
    first = site.publish()
    one, other = site.hosts = [make_host(redis_server.url, tmp_path / name) for name in ("one", "other")]
    for host in site.hosts:
        watch.follow(host.wait_ready())
    site.take_down("ad-1")
    site.bring_new_ad()

    redis_server.stop()
    for host in site.hosts:
        hosts.eventually(host.faults, f"{host.log.name} tells no fault")
        assert "cannot be reached" in host.faults()[0]
        assert host.ready()["ready"] is True
    other.kill()
    other.start()  # from its mirror
    newcomer = make_host(redis_server.url, tmp_path / "newcomer")  # with an empty one
    hosts.eventually(lambda: newcomer.faults(), "the newcomer tells no fault")
    assert newcomer.ready()["ready"] is False
    assert "cannot be reached" in newcomer.faults()[0]
    assert newcomer.rank(hosts.ADS).status_code == 503
    everything = {*hosts.ADS, "new-ad"}
    assert other.wait_ready().shown(everything) == everything - {"ad-1"}

    redis_server.start()  # empty
    for host in (one, other):
        hosts.eventually(lambda host=host: not host.faults(), f"{host.log.name} still tells a fault")
    assert newcomer.ready()["ready"] is False
    second = site.publish("other_")
    site.hosts.append(newcomer.wait_ready())
    watch.gone("ad-1", [newcomer])
    watch.follow(newcomer)
    site.wait_for(second)
    site.take_down("ad-2")

    assert newcomer.roll_back()["index"] == first
    site.wait_for(first)
    one.kill()
    vectors = tmp_path / "one" / "indexes" / first / "vectors.npy"
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"\x7f")
    one.start().wait_ready()  # with a part that it pulled again
    for host in site.hosts:
        assert host.shown(everything) == everything - {"ad-1", "ad-2"}
        assert host.faults() == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1])
def test_twenty_failures_in_a_row(
    parts: Path, tmp_path: Path, watch: Any, make_host: Callable, redis_server: Any, hosts: ModuleType, seed: int
) -> None:
    """Something fails while something is changed; once it is mended, the change succeeds and every host has it."""
    rng = random.Random(seed)
    site = hosts.Site(redis_server.url, tmp_path / "publisher", parts, watch)
    site.expect(parts / "other_index")
    site.publish()
    site.hosts = [make_host(redis_server.url, tmp_path / name) for name in ("one", "other")]
    for host in site.hosts:
        watch.follow(host.wait_ready())
    for turn in range(20):
        failure, victim = rng.choice(FAILURES), rng.choice(site.hosts)
        change = "publish" if failure in ("empty", "damage") else rng.choice(["publish", "roll back", "take down"])
        if change == "roll back" and len(site.store.names("shopping")) < 2:
            change = "publish"
        prefix = rng.choice(["", "other_"])
        if failure == "stop":
            redis_server.stop()
        elif failure == "pause":
            redis_server.client.client_pause(int(3000 * rng.random()))
        with suppress(RedisError):
            _change(site, change, prefix, turn)
        time.sleep(rng.random())
        if failure == "empty":
            redis_server.empty()
        elif failure in ("kill", "damage"):
            victim.kill()
        if failure == "damage":
            index = site.store.current("shopping").index
            for vectors in victim.local.glob(f"indexes/{index}/vectors.npy"):
                vectors.write_bytes(vectors.read_bytes()[:-1] + rng.randbytes(1))
        redis_server.start()
        if failure in ("kill", "damage"):
            victim.start()
        _change(site, change, prefix, turn)
        for host in site.hosts:
            host.wait_ready()
        site.wait_for(site.store.current("shopping").index)
        for host in site.hosts:
            hosts.eventually(lambda host=host: not host.faults(), f"turn {turn}: {host.faults()}")
        if change == "take down":
            site.wait_gone(f"ad-{turn}")


FAILURES = ["kill", "kill", "kill", "stop", "empty", "pause", "damage"]


def _change(site: Any, change: str, prefix: str, turn: int) -> None:
    if change == "take down":
        site.append_takedown(f"ad-{turn}")
    elif change == "roll back":
        site.store.rollback("shopping")
    else:
        parts = site.parts
        site.store.publish(
            two_tower=parts / f"{prefix}two_tower", heavy=parts / "heavy", index=parts / f"{prefix}index"
        )
