"""A/B splits stay with the user; shadows answer nobody; both follow the store beside what serves."""

import time
from dataclasses import replace

import msgspec
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from contracts.errors import InputError
from indexing.update_record import Update
from service.app import create_app
from service.deadline import Deadline
from service.experiments import is_shadowed, second_release, split_users
from service.follower import Follower
from service.ranker import rank
from service.releases import Snapshot, load_release
from service.settings import Settings, ShadowRelease, Split
from service.telemetry import Telemetry
from service.wire import decode_request


def request_of(scenario, **query):
    return decode_request(msgspec.json.encode({"scenario": scenario, "query": query}))


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def two_arms(snapshot):
    """Standard has a second release, of another id."""
    first = snapshot.releases["standard"]
    second = replace(first, release=msgspec.structs.replace(first.release, release_id="standard-second"))
    return replace(snapshot, arms={"standard": second})


def test_a_split_sends_its_share_of_users_and_each_user_always_to_one_arm(two_arms):
    splits = {"standard": Split(release="previous", share=0.2)}
    arms = {}
    for user in range(5_000):
        picked, arm = split_users(two_arms, request_of("standard", user_id=f"u{user}"), splits)
        arms[user] = arm
        expected = two_arms.arms if arm == "b" else two_arms.releases
        assert picked.releases["standard"] is expected["standard"]
        assert picked.releases["shopping"] is two_arms.releases["shopping"]
    # Binomial: 5,000 at .2 have a standard deviation of 28.
    assert sum(arm == "b" for arm in arms.values()) == pytest.approx(1_000, abs=140)
    again = {
        user: split_users(two_arms, request_of("standard", user_id=f"u{user}"), splits)[1] for user in range(5_000)
    }
    assert again == arms
    wider = {"standard": Split(release="previous", share=0.5)}
    for user, arm in arms.items():
        if arm == "b":  # a wider split keeps the users that it had
            assert split_users(two_arms, request_of("standard", user_id=f"u{user}"), wider)[1] == "b"


def test_requests_without_a_user_and_scenarios_without_a_split_stay_with_the_first_release(two_arms, snapshot):
    splits = {"standard": Split(release="previous", share=1.0, key="country")}
    assert split_users(two_arms, request_of("standard"), splits)[1] == "a"
    assert split_users(two_arms, request_of("standard", country="DE"), splits)[1] == "b"
    assert split_users(two_arms, request_of("shopping", country="DE"), splits) == (two_arms, None)
    assert split_users(two_arms, request_of("auto", country="DE"), splits)[1] == "standard=b"
    assert split_users(snapshot, request_of("standard", country="DE"), splits)[1] == "a"  # the second is not loaded


def test_the_answer_names_arm_and_release(two_arms, settings, example_query):
    split = settings.model_copy(update={"ab": {"standard": Split(release="previous", share=1.0, key="country")}})
    body = {"scenario": "standard", "query": example_query(1) | {"country": "DE"}, "candidates": ["standard-1"]}
    response = rank(decode_request(msgspec.json.encode(body)), two_arms, split, Deadline()).response
    assert response.arm == "b"
    assert rank(decode_request(msgspec.json.encode(body)), two_arms, settings, Deadline()).response.arm is None


def test_a_share_of_requests_is_shadowed():
    shadow = ShadowRelease(release="previous", share=0.3)
    count = sum(is_shadowed(f"r-{number}", shadow) for number in range(5_000))
    assert count == pytest.approx(1_500, abs=170)
    assert is_shadowed("r", ShadowRelease(release="previous"))
    assert not is_shadowed("r", ShadowRelease(release="previous", share=0.0))


def test_a_follower_holds_second_releases_and_follows_them(own_world, own_settings):
    settings = own_settings.model_copy(
        update={
            "ab": {"standard": Split(release="previous", share=0.5)},
            "shadow": {"shopping": ShadowRelease(release="previous")},
        }
    )
    follower = Follower(own_world.store, settings, Telemetry())
    follower.poll()
    assert follower.is_ready
    assert (follower.snapshot.arms, follower.snapshot.shadows) == ({}, {})
    assert "no previous release" in follower.failures["standard (arms)"].error
    first = follower.snapshot.releases["standard"]
    second = own_world.publish("standard", 1)
    follower.poll()
    assert follower.snapshot.releases["standard"].release.release_id == second.release_id
    assert follower.snapshot.arms["standard"] is first  # it was loaded already
    own_world.store.append_updates([Update(ad_id="standard-1", at=1, takedown=True)])
    follower.apply_updates()
    for loaded in (follower.snapshot.releases["standard"], follower.snapshot.arms["standard"]):
        assert not loaded.live.servable(loaded.live.lookup(["standard-1"]))[0]
    assert "standard (arms)" not in follower.failures
    own_world.publish("shopping", 1)
    follower.poll(retry_failed=True)
    assert follower.snapshot.shadows["shopping"].release.scenario == "shopping"
    assert follower.failures == {}
    own_world.store.rollback("standard")
    follower.poll()
    assert follower.snapshot.releases["standard"] is first
    follower.apply_updates()
    assert follower.faults == {}
    follower.close()


def test_an_unknown_second_release_is_told_with_those_that_there_are(own_world):
    first = own_world.store.current("standard").release_id
    second = own_world.publish("standard", 1).release_id
    own_world.store.rollback("standard")
    with pytest.raises(InputError) as refused:
        second_release(own_world.store, "standard", "standard-gone")
    message = str(refused.value)
    assert message.startswith("scenario 'standard' has no release 'standard-gone'; it has: ")
    assert set(message.partition("it has: ")[2].split(", ")) == {first, second}  # as `rollback --to` tells
    assert second_release(own_world.store, "standard", second).release_id == second
    for wanted in ("previous", "video-1"):
        with pytest.raises(InputError, match="scenario 'video' has no .*; it has: none"):
            second_release(own_world.store, "video", wanted)
    with pytest.raises(InputError, match="no previous release to be its second one; it has: shopping-"):
        second_release(own_world.store, "shopping", "previous")


def test_the_service_is_not_ready_before_its_second_releases_are_loaded(own_world, own_settings, monkeypatch):
    own_world.publish("standard", 1)
    settings = own_settings.model_copy(update={"ab": {"standard": Split(release="previous", share=1.0)}})
    follower, seen = Follower(own_world.store, settings, Telemetry()), []

    def watched(*arguments, **options):
        seen.append((follower.is_ready, sorted(follower.snapshot.releases)))
        return load_release(*arguments, **options)

    monkeypatch.setattr("service.release_loader.load_release", watched)
    follower.poll()
    assert seen[-1] == (False, ["shopping", "standard"])  # the arm comes last
    assert len(seen) == 3
    assert follower.is_ready
    assert follower.snapshot.arms["standard"].release.release_id == own_world.store.names("standard")[1]
    follower.close()


def test_second_releases_are_shown_and_their_answers_counted_by_scenario(own_world, own_settings, example_query):
    second = own_world.publish("standard", 1)
    first = own_world.store.names("standard")[1]
    settings = own_settings.model_copy(
        update={
            "ab": {
                "standard": Split(release="previous", share=1.0),
                "shopping": Split(release="shopping-gone", share=0.5),
            },
            "shadow": {"standard": ShadowRelease(release=first, share=0.0)},
        }
    )
    body = {"scenario": "standard", "query": example_query(1) | {"user_id": "u1"}, "candidates": ["standard-1"]}
    with TestClient(create_app(settings)) as client:
        wait_until(lambda: client.get("/health/ready").status_code == 200)
        answer = client.post("/rank", json=body).json()
        assert answer["arm"] == "b"
        assert answer["warnings"] == []  # the key of the split is known, though no model reads it
        other = client.post("/rank", json=body | {"query": body["query"] | {"user_idd": "u1"}}).json()
        assert other["warnings"] == ["unknown feature query.user_idd ignored"]
        assert client.post("/rank", json=body | {"scenario": "auto"}).json()["arm"] == "shopping=a,standard=b"
        metrics, releases = client.get("/metrics").text, client.get("/releases").json()
    for scenario, arm, count in (("standard", "b", 3.0), ("shopping", "a", 1.0)):
        assert f'adsieve_arm_requests_total{{arm="{arm}",scenario="{scenario}"}} {count}' in metrics
    (standard,) = [one for one in releases["serving"] if one["scenario"] == "standard"]
    assert standard["release_id"] == second.release_id
    shown = {(one["kind"], one["scenario"]): one for one in releases["second"]}
    assert shown.keys() == {("arms", "standard"), ("arms", "shopping"), ("shadows", "standard")}
    assert shown["arms", "standard"] == shown["shadows", "standard"] | {
        "kind": "arms",
        "wanted": "previous",
        "share": 1.0,
    }
    assert shown["arms", "standard"]["release_id"] == first
    assert shown["arms", "standard"]["two_tower"] == answer["release"]["standard"]["two_tower"]
    assert shown["arms", "shopping"]["release_id"] is None
    assert shown["arms", "shopping"]["wanted"] == "shopping-gone"


def test_a_second_release_that_is_gone_is_told_and_costs_no_answer(own_world, own_settings):
    settings = own_settings.model_copy(update={"ab": {"standard": Split(release="standard-gone", share=1.0)}})
    follower = Follower(own_world.store, settings, Telemetry())
    follower.poll()
    assert follower.is_ready
    assert follower.failures["standard (arms)"].release_id == "standard-gone"
    assert sorted(follower.snapshot.releases) == ["shopping", "standard"]
    follower.close()


def test_a_shadow_ranks_after_the_answer_and_both_are_logged(own_world, own_settings, example_query, tmp_path):
    own_world.publish("standard", 1)
    settings = own_settings.model_copy(
        update={
            "shadow": {"standard": ShadowRelease(release="previous")},
            "feedback_dir": tmp_path / "feedback",
            "feedback_seconds": 0.2,
        }
    )
    body = {
        "scenario": "standard",
        "request_id": "r-1",
        "query": example_query(1),
        "candidates": [f"standard-{number}" for number in range(20)],
    }
    app = create_app(settings)
    with TestClient(app) as client:
        wait_until(lambda: client.get("/health/ready").status_code == 200)
        wait_until(lambda: "standard" in app.state.follower.snapshot.shadows)
        answer = client.post("/rank", json=body).json()
        current = own_world.store.current("standard")
        assert answer["release"]["standard"]["two_tower"] == current.two_tower
        wait_until(lambda: 'adsieve_shadow_requests_total{result="ranked"} 1.0' in client.get("/metrics").text)
        metrics = client.get("/metrics").text
    assert 'adsieve_shadow_overlap_ratio_count{scenario="standard"} 1.0' in metrics
    logged = {
        folder: pq.read_table(tmp_path / "feedback" / folder).to_pylist() for folder in ("requests", "shadow/requests")
    }
    counted = TestClient(app).get("/metrics").text  # once all is written
    for name, folder in (("feedback", "candidates"), ("shadow_feedback", "shadow/candidates")):  # each log its own
        assert f'adsieve_{name}_requests_total{{result="written"}} 1.0' in counted
        written = pq.read_table(tmp_path / "feedback" / folder).num_rows
        assert f"adsieve_{name}_candidates_total {float(written)}" in counted
    assert [row["release"] for row in logged["requests"]] == [current.release_id]
    assert [row["request_id"] for row in logged["shadow/requests"]] == ["r-1"]
    assert logged["shadow/requests"][0]["release"] == own_world.store.names("standard")[1]
    assert logged["shadow/requests"][0]["event_time"] == logged["requests"][0]["event_time"]


def test_settings_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ADSIEVE_AB", '{"standard": {"release": "previous", "share": 0.1}}')
    monkeypatch.setenv("ADSIEVE_SHADOW", '{"shopping": {"release": "shopping-1"}}')
    settings = Settings(store=tmp_path)
    assert settings.ab == {"standard": Split(release="previous", share=0.1)}
    assert settings.shadow == {"shopping": ShadowRelease(release="shopping-1")}
    monkeypatch.setenv("ADSIEVE_AB", '{"standard": {"release": "previous", "share": 2}}')
    with pytest.raises(ValidationError, match=r"ab.standard.share"):
        Settings(store=tmp_path)


def test_snapshots_hold_each_release_once(snapshot):
    first = snapshot.releases["standard"]
    held = replace(snapshot, arms={"standard": first}, shadows={"standard": first})
    assert len(held.loaded()) == 2
    other = replace(first)
    changed = held.replacing(first, other)
    assert [of["standard"] is other for of in (changed.releases, changed.arms, changed.shadows)] == [True] * 3
    assert changed.releases["shopping"] is snapshot.releases["shopping"]
    assert held.without("arms", "standard") == Snapshot(held.releases, {}, held.shadows)
