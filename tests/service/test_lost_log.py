"""A host whose log of updates is lost or damaged: it serves with the takedowns that it knows, and says so."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from indexing import overlay_files
from indexing.update_log import UpdateLog
from indexing.update_record import Update
from service.follower import Follower
from service.status import readiness
from service.telemetry import Telemetry


def break_manifest(log: Path) -> None:
    (log / "log.json").write_bytes(b"{")


def remove_segment(log: Path) -> None:
    next(log.glob("*.jsonl")).unlink()


def remove(log: Path) -> None:
    shutil.rmtree(log)


BREAKS = [break_manifest, remove_segment, remove]


class Host:
    """One host of a store: processes that come and go, its log, and what Prometheus reads of the last process."""

    def __init__(self, world, settings):
        self.world, self.settings = world, settings
        self.log = world.root / "updates"
        self.running = None

    def start(self, **changed):
        """Another process; the one before is gone."""
        self.stop()
        self.telemetry = Telemetry()
        self.running = Follower(self.world.store, self.settings.model_copy(update=changed), self.telemetry)
        self.running.poll()
        self.running.apply_updates()
        return self.running

    def stop(self):
        if self.running is not None:
            self.running.close()

    def metric(self, name, scenario="shopping"):
        labels = {} if name.endswith("_readable") else {"scenario": scenario}
        return self.telemetry._registry.get_sample_value(name, labels)

    def servable(self, *ids):
        live = self.running.snapshot.releases["shopping"].live
        return live.servable(live.lookup(ids)).tolist()

    def say(self, *updates):
        UpdateLog(self.log).append(updates)
        self.running.apply_updates()

    def down(self):
        """Whether the two ads that were taken down are servable."""
        return self.servable(*self.ids[:2])

    def restart_machine(self, monkeypatch):
        monkeypatch.setattr(overlay_files, "boot_id", lambda: b"another start")


@pytest.fixture
def host(own_world, own_settings):
    """A host that took three ads down, and restored the third."""
    host = Host(own_world, own_settings)
    live = host.start().snapshot.releases["shopping"].live
    host.ids = live.ids(np.flatnonzero(live.servable(np.arange(live.num_rows)))[:3])
    updates = [Update(ad_id=ad_id, at=0, takedown=True) for ad_id in ("elsewhere", *host.ids)]
    host.say(*updates, Update(ad_id=host.ids[2], at=0, takedown=False), Update(ad_id=host.ids[0], at=0, bid=7.0))
    yield host
    host.stop()


@pytest.mark.parametrize("reboots", [False, True])
@pytest.mark.parametrize("damage", BREAKS)
def test_a_restarted_process_serves_with_the_takedowns_that_it_knows(host, damage, reboots, monkeypatch):
    assert host.down() == [False, False]
    damage(host.log)
    if reboots:
        host.restart_machine(monkeypatch)
    follower = host.start()
    assert follower.is_ready
    assert follower.failures == {}
    assert host.down() == [False, False]
    assert host.servable(host.ids[2]) == [True]
    (fault,) = readiness(follower).faults
    assert fault.what == "updates"
    assert "log" in fault.error
    assert host.metric("adsieve_update_log_readable") == 0
    assert host.metric("adsieve_follow_failures_total") is None


@pytest.mark.parametrize("reboots", [False, True])
def test_updates_go_on_where_the_log_is_repaired(host, reboots, monkeypatch):
    break_manifest(host.log)
    if reboots:
        host.restart_machine(monkeypatch)
    follower = host.start()
    host.say(Update(ad_id=host.ids[0], at=0, takedown=False))  # an append builds the manifest again
    assert follower.faults == {}
    assert host.metric("adsieve_update_log_readable") == 1
    assert host.down() == [True, False]


@pytest.mark.parametrize("reboots", [False, True])
@pytest.mark.parametrize("damage", BREAKS)
def test_updates_go_on_where_another_log_is_begun_and_revive_nothing(host, damage, reboots, monkeypatch):
    damage(host.log)
    if reboots:
        host.restart_machine(monkeypatch)
    follower = host.start()
    UpdateLog(host.log).set_aside()
    host.say(Update(ad_id=host.ids[0], at=0, takedown=False))
    host.running.apply_updates()
    assert follower.faults == {}
    assert host.down() == [True, False]
    host.start()
    assert host.down() == [True, False], "nor does a process that takes over"
    host.restart_machine(monkeypatch)
    host.start()
    assert host.down() == [True, False], "nor one after a start of the machine"
    host.say(Update(ad_id=host.ids[1], at=0, takedown=False))
    assert host.down() == [True, True]


def test_a_release_that_comes_later_has_the_takedowns_of_a_lost_log(host):
    shutil.rmtree(host.log)
    host.say(Update(ad_id=host.ids[2], at=0, bid=1.0))
    host.world.publish("shopping", 1)
    host.running.poll()
    assert host.running.snapshot.releases["shopping"].release == host.world.store.current("shopping")
    assert host.down() == [False, False]


@pytest.mark.parametrize("damage", [break_manifest, remove_segment])
def test_a_host_that_knows_nothing_does_not_serve_unless_told_to(host, damage):
    damage(host.log)
    host.stop()
    shutil.rmtree(host.world.root / "hosts")
    follower = host.start()
    assert not follower.is_ready
    assert "nobody knows which ads are taken down" in follower.failures["shopping"].error
    assert "ADSIEVE_UNKNOWN_TAKEDOWNS=serve" in follower.failures["shopping"].error
    assert "updates" in follower.faults
    follower = host.start(unknown_takedowns="serve")
    assert follower.is_ready
    assert "updates" in follower.faults
    assert host.down() == [True, True]


def test_a_host_that_knows_nothing_serves_once_the_log_is_repaired(host):
    break_manifest(host.log)
    host.stop()
    shutil.rmtree(host.world.root / "hosts")
    follower = host.start()
    assert not follower.is_ready
    UpdateLog(host.log).repair()
    follower.poll()
    follower.apply_updates()
    assert follower.is_ready
    assert follower.faults == {}
    assert host.down() == [False, False]


def test_damaged_lines_and_the_time_of_the_last_update_are_told_alike_by_all_processes(host):
    before = host.metric("adsieve_update_applied_timestamp_seconds")
    assert before > 0
    segment = next(host.log.glob("*.jsonl"))
    segment.write_bytes(segment.read_bytes().replace(b'"bid":7', b'"bid":8'))
    writer = host.start()
    second = Telemetry()
    other = Follower(host.world.store, host.settings, second)
    other.poll()
    host.say(Update(ad_id=host.ids[0], at=0, bid=1.0))
    other.apply_updates()
    writer.apply_updates()
    names = ("applied_timestamp_seconds", "log_damaged_lines", "position")
    told = [
        [one._registry.get_sample_value(f"adsieve_update_{name}", {"scenario": "shopping"}) for name in names]
        for one in (host.telemetry, second)
    ]
    assert told[0] == told[1]
    assert told[0][0] > before
    assert told[0][1:] == [1, 7]
    assert host.metric("adsieve_updates_waiting") == 0
    other.close()


def test_what_waits_is_told(host):
    UpdateLog(host.log).append([Update(ad_id=host.ids[0], at=0, bid=1.0)] * 3)
    loaded = host.running.snapshot.releases["shopping"]
    host.telemetry.serving.updated(loaded, UpdateLog(host.log).end)
    assert host.metric("adsieve_updates_waiting") == 3
    host.running.apply_updates()
    assert host.metric("adsieve_updates_waiting") == 0
