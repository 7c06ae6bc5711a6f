"""The judge finds what is mixed: every part of a release taken from another, one after the other."""

from dataclasses import replace

import pytest

from service.releases import Snapshot


@pytest.fixture
def host(new_host):
    with new_host() as host:
        yield host


def other_release(host, tower, heavy):
    """What serves once another pair is published; the host goes back to what it served."""
    before = host.follower.snapshot
    host.publish(tower, heavy)
    host.poll(0, 0)
    found = host.follower.snapshot.releases[host.day.scenario]
    host.follower._serving.swap(lambda _: before)
    return found


def share_of_faults(host, **parts):
    """Of the ads of an answer, when some parts of the release are others."""
    loaded = host.follower.snapshot.releases[host.day.scenario]
    host.follower._serving.swap(lambda _: Snapshot({host.day.scenario: replace(loaded, **parts)}))
    host.faults.clear()
    host.counts.clear()
    host.judge_answer(host.take_off(2))
    return len(host.faults) / host.counts["ads"]


def test_a_whole_release_has_no_fault(host):
    assert share_of_faults(host) == 0


def test_the_query_tower_of_another_version(host):
    assert share_of_faults(host, tower=other_release(host, 1, 0).tower) > 0.9


def test_the_index_of_another_tower(host):
    assert share_of_faults(host, live=other_release(host, 1, 0).live) > 0.9


def test_the_index_of_another_heavy_ranker(host):
    """Its ids are rows of this one's tables too."""
    host.publish(0, 1)
    host.poll(0, 0)
    assert share_of_faults(host, live=other_release(host, 0, 0).live) > 0.9


def test_the_index_of_another_heavy_ranker_whose_ids_are_no_rows_of_the_tables(host):
    assert share_of_faults(host, live=other_release(host, 0, 1).live) > 0
    assert "degraded" in host.faults[0]


def test_a_heavy_ranker_of_another_schema(host):
    assert share_of_faults(host, heavy=other_release(host, 0, 1).heavy) > 0.9


def test_a_heavy_ranker_of_the_same_schema_and_another_version(host):
    host.publish(0, 1)
    host.poll(0, 0)
    heavy = other_release(host, 0, 2).heavy
    loaded = host.follower.snapshot.releases[host.day.scenario]
    assert share_of_faults(host, heavy=replace(heavy, version=loaded.heavy.version)) > 0.9


def test_an_ad_as_it_was_before_an_update_in_effect(host):
    stale = host.follower.snapshot.releases[host.day.scenario].live
    for ad in range(40):
        host.content(ad, 2 * ad + 1)
    host.apply(0, 0)
    assert share_of_faults(host) == 0
    as_built = type(stale)(stale.index, host.models.towers[0].schema)
    assert share_of_faults(host, live=as_built) > 0.9
