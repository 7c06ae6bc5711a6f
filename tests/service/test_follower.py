"""The follower refuses what must not serve, says so, and tries again."""

import dataclasses
import shutil

import msgspec
import pytest

from contracts.errors import ArtifactError, MismatchError
from service.follower import Follower
from service.releases import load_release
from service.telemetry import Telemetry
from service.warmup import warm_up


class Broken:
    """A heavy ranker that fails."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def score(self, *inputs):
        raise RuntimeError("no memory")


@pytest.fixture
def follower(own_world, own_settings):
    return Follower(own_world.store, own_settings, Telemetry())


def damage(world, scenario, generation):
    """Publish a release and take a file away from it."""
    release = world.publish(scenario, generation)
    (world.store.paths(release).index / "bias.npy").unlink()
    return release


def test_scenarios_share_a_heavy_ranker_of_one_version(snapshot):
    assert snapshot.releases["shopping"].heavy is snapshot.releases["standard"].heavy


def test_warm_up_replays_every_saved_request(snapshot, settings):
    assert warm_up(snapshot.releases["shopping"], settings) == 3
    strict = {"unknown_features": "refuse", "missing_features": "refuse", "duplicate_ads": "refuse"}
    assert warm_up(snapshot.releases["shopping"], settings.model_copy(update=strict)) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", r"requests\.jsonl line 1: the body is not valid"),
        (b'{"scenario": "video", "query": {}}', r"requests\.jsonl line 1: scenario: unknown scenario 'video'"),
    ],
)
def test_a_release_whose_saved_requests_fail_does_not_serve(snapshot, settings, line, message):
    loaded = dataclasses.replace(snapshot.releases["shopping"], warm_up_requests=(line,))
    with pytest.raises(ArtifactError, match=message):
        warm_up(loaded, settings)


def test_a_release_whose_heavy_ranker_fails_does_not_serve(snapshot, settings):
    loaded = snapshot.releases["shopping"]
    heavy = dataclasses.replace(loaded.heavy, serving=Broken(loaded.heavy.serving))
    with pytest.raises(ArtifactError, match="the heavy ranker failed: RuntimeError: no memory"):
        warm_up(dataclasses.replace(loaded, heavy=heavy), settings)


def test_a_release_that_names_other_versions_than_the_store_holds_is_refused(world, snapshot, as_built):
    release, other = world.store.current("shopping"), world.store.current("standard")
    with pytest.raises(MismatchError):
        load_release(release, world.store.paths(other), serving=snapshot, open_live=as_built, engine_threads=1)
    changed = msgspec.structs.replace(release, heavy="heavy-x")
    with pytest.raises(MismatchError, match=r"names the versions .*heavy-x.*, the store holds"):
        load_release(changed, world.store.paths(release), serving=snapshot, open_live=as_built, engine_threads=1)


def test_a_failed_release_is_tried_again_only_after_its_pause(own_world, own_settings):
    follower = Follower(own_world.store, own_settings.model_copy(update={"failed_retry_s": 3600.0}), Telemetry())
    follower.poll()
    good = follower.snapshot.releases["shopping"].release.release_id
    release = damage(own_world, "shopping", 1)
    follower.poll()
    first = follower.failures["shopping"]
    assert (first.release_id, follower.snapshot.releases["shopping"].release.release_id) == (release.release_id, good)
    follower.poll()
    assert follower.failures["shopping"] is first
    own_world.publish("shopping", 1)  # repairs the store's copy under a new release
    follower.poll()
    assert follower.failures == {}
    assert follower.snapshot.releases["shopping"].release.release_id != good


def test_a_clock_that_moves_back_holds_no_failed_release_up(follower, own_world, artifacts, monkeypatch):
    follower.poll()
    release = damage(own_world, "shopping", 1)
    follower.poll()
    shutil.copy(artifacts / "shopping-1-index" / "bias.npy", own_world.store.paths(release).index / "bias.npy")
    monkeypatch.setattr("service.follower.time.time", lambda: 0.0)
    follower.poll()
    assert follower.failures == {}
    assert follower.snapshot.releases["shopping"].release == release


def test_who_can_fetch_a_damaged_release_again_is_told_of_it(own_world, own_settings):
    doubted = []
    follower = Follower(own_world.store, own_settings, Telemetry(), doubt=doubted.append)
    follower.poll()
    assert doubted == []
    release = damage(own_world, "shopping", 1)
    follower.poll()
    assert doubted == [release]


def test_a_repaired_release_is_picked_up_at_once_when_told(own_world, own_settings, artifacts):
    follower = Follower(own_world.store, own_settings.model_copy(update={"failed_retry_s": 3600.0}), Telemetry())
    follower.poll()
    release = damage(own_world, "shopping", 1)
    follower.poll()
    shutil.copy(artifacts / "shopping-1-index" / "bias.npy", own_world.store.paths(release).index / "bias.npy")
    follower.poll()
    assert "shopping" in follower.failures
    follower.poll(retry_failed=True)
    assert follower.failures == {}
    assert follower.snapshot.releases["shopping"].release == release


def test_an_unreadable_pointer_stops_neither_its_own_scenario_nor_others(follower, own_world):
    follower.poll()
    (own_world.root / "current" / "shopping.json").write_text("{")
    standard = own_world.publish("standard", 1)
    follower.poll()
    assert "not readable as Pointer" in follower.failures["shopping"].error
    assert follower.snapshot.releases["standard"].release == standard
    assert set(follower.snapshot.releases) == {"shopping", "standard"}
    assert follower.is_ready


@pytest.mark.parametrize("lost", ["current/shopping.json", "current"])
def test_a_lost_pointer_is_told_and_what_serves_goes_on(follower, own_world, own_settings, lost):
    follower.poll()
    serving, path = dict(follower.snapshot.releases), own_world.root / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    follower.poll()
    assert "current/shopping.json: missing" in follower.failures["shopping"].error
    assert follower.snapshot.releases == serving
    begun = Follower(own_world.store, own_settings, Telemetry())
    begun.poll()
    assert "current/shopping.json: missing" in begun.failures["shopping"].error
    assert not begun.is_ready
    own_world.store.restore("shopping")
    begun.poll()
    assert "shopping" not in begun.failures
    assert begun.snapshot.releases["shopping"].release == serving["shopping"].release


def test_an_unreadable_record_of_the_newest_release_leaves_the_older_ones(follower, own_world):
    older = own_world.store.current("shopping")
    newest = own_world.publish("shopping", 1)
    (own_world.root / "releases" / "shopping" / f"{newest.release_id}.json").write_text("{")
    follower.poll()
    assert "not readable as Release" in follower.failures["shopping"].error
    assert follower.snapshot.releases["shopping"].release == older
    assert follower.is_ready


def test_a_request_keeps_the_snapshot_it_began_with(follower, own_world):
    follower.poll()
    before = follower.snapshot
    own_world.publish("shopping", 1)
    follower.poll()
    assert before.releases["shopping"] is not follower.snapshot.releases["shopping"]
    assert before.releases["standard"] is follower.snapshot.releases["standard"]
