"""What a replay measures before a release is what the service answers after it."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from contracts.bundle import open_bundle
from contracts.errors import ArtifactError, MismatchError
from contracts.utility import top_positions
from indexing.index import Index
from indexing.release_gate import Candidate, ReleaseRefused, judge, publish_release
from indexing.release_limits import ReleaseLimits
from indexing.replay import LightReplay, replay_light
from indexing.replay_heavy import HeavyReplay, replay_heavy
from indexing.replay_requests import SavedRequest, read_request
from indexing.store import DirectoryStore
from service.deadline import Deadline
from service.ranker import rank
from service.releases import Snapshot
from service.settings import Settings
from service.wire import decode_request

LENIENT = ReleaseLimits(
    min_requests=1, max_unknown_share=None, min_overlap=None, max_calibration_current=None, max_calibration_heavy=None
)


def candidate(artifacts: Path, generation: int = 0) -> Candidate:
    return Candidate(
        two_tower=artifacts / f"shopping-{generation}",
        heavy=artifacts / "heavy",
        index=artifacts / f"shopping-{generation}-index",
    )


@pytest.fixture(scope="module")
def light(artifacts: Path) -> LightReplay:
    parts = candidate(artifacts)
    return LightReplay(open_bundle(parts.two_tower), Index.open(parts.index))


def body(example_query: Callable[[int], dict], seed: int) -> dict:
    """Unknown, repeated and paused ads, bids of every kind, objectives given, null and absent."""
    rng = np.random.default_rng(seed)
    ids = [f"shopping-{number}" if number % 7 else f"shopping-ü广告-{number}" for number in rng.integers(0, 45, 30)]
    candidates: dict = {"ids": ids, "affinity": [None if draw < 0.2 else float(draw) for draw in rng.random(30)]}
    if seed % 3:
        candidates["bids"] = [(None, -1.0, 0.0, 2.5, float(draw))[int(draw * 5)] for draw in rng.random(30)]
    if seed % 4 == 3:
        candidates["bids"] = [(None, -1.0)[at % 2] for at in range(30)]
    if seed % 2:
        candidates["objectives"] = [("click", "conversion", "impression", None)[at] for at in rng.integers(0, 4, 30)]
    query = {name: value for name, value in example_query(seed).items() if value is not None}
    return {"scenario": "shopping", "event_time": "2026-03-01T12:00:00Z", "query": query, "candidates": candidates}


def saved(content: dict) -> SavedRequest:
    request = read_request(msgspec.json.encode(content), "here", "shopping")
    assert request is not None
    return request


@pytest.mark.parametrize("seed", range(12))
def test_a_replay_ranks_as_the_service_does(
    light: LightReplay, snapshot: Snapshot, settings: Settings, example_query: Callable[[int], dict], seed: int
) -> None:
    content = body(example_query, seed)
    sent = decode_request(msgspec.json.encode({**content, "stage": "light", "survivors": 25}))
    answer = rank(sent, snapshot, settings, Deadline()).response
    request = saved(content)
    ranked = light.rank(request)
    order = top_positions(ranked.utilities, 25)
    assert [request.ids[at] for at in ranked.positions[order]] == answer.ads.ids
    np.testing.assert_array_equal(ranked.utilities[order], answer.ads.utilities)
    for place, task in enumerate(light.tasks):
        np.testing.assert_array_equal(ranked.probabilities[order, place], answer.ads.light[task])
    assert ranked.unknown == len(answer.dropped.unknown)
    assert ranked.inactive == len(answer.dropped.inactive)


def test_the_heavy_ranker_of_a_replay_is_that_of_the_service(
    light: LightReplay,
    artifacts: Path,
    snapshot: Snapshot,
    settings: Settings,
    example_query: Callable[[int], dict],
) -> None:
    heavy = HeavyReplay(open_bundle(artifacts / "heavy"))
    for seed in range(4):
        content = body(example_query, seed)
        sent = decode_request(msgspec.json.encode({**content, "survivors": 30, "limit": 30}))
        answer = rank(sent, snapshot, settings, Deadline()).response
        request = saved(content)
        ranked = light.rank(request)
        found = heavy.probabilities(light, request, ranked.rows, ranked.positions)
        served = {ad: at for at, ad in enumerate(answer.ads.ids)}
        order = [served[request.ids[at]] for at in ranked.positions]
        assert len(order) == len(served) > 5
        for place, task in enumerate(heavy.tasks):
            np.testing.assert_allclose(found[:, place], np.array(answer.ads.heavy[task])[order], rtol=1e-5)


def test_metrics_equal_their_definitions(artifacts: Path, light: LightReplay) -> None:
    other = LightReplay(open_bundle(artifacts / "shopping-1"), Index.open(artifacts / "shopping-1-index"))
    found = replay_light(light, other, survivors=1)
    lines = (artifacts / "shopping-0" / "requests.jsonl").read_bytes().splitlines()
    requests = [saved(msgspec.json.decode(line)) for line in lines]
    assert found.metrics["unknown_share"] == pytest.approx(3 / 9)
    assert found.skipped == ["overlap (no request has 4 ads that both rank)"]
    ours, theirs = np.zeros(2), np.zeros(2)
    for request in requests:
        ours += light.rank(request).probabilities.sum(axis=0)
        theirs += other.rank(request).probabilities.sum(axis=0)
    for place, task in enumerate(light.tasks):
        assert found.metrics[f"calibration_current.{task}"] == pytest.approx(ours[place] / theirs[place])
    heavy = replay_heavy(light, HeavyReplay(open_bundle(artifacts / "heavy")), min_requests=1)
    assert set(heavy.metrics) == {"calibration_heavy.click", "calibration_heavy.conversion"}
    assert replay_heavy(light, HeavyReplay(open_bundle(artifacts / "heavy")), min_requests=4).skipped == [
        "calibration_heavy (3 of 4 saved requests)"
    ]


def test_overlap_is_the_shared_part_of_the_survivors(
    artifacts: Path, light: LightReplay, example_query: Callable[[int], dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LightReplay(open_bundle(artifacts / "shopping-1"), Index.open(artifacts / "shopping-1-index"))
    requests = [saved(body(example_query, seed)) for seed in range(6)]
    monkeypatch.setattr("indexing.replay.saved_requests", lambda bundle, scenario: requests)
    expected = []
    for request in requests:
        mine, theirs = light.rank(request), other.rank(request)
        k = min(3, len(mine.positions) // 4, len(theirs.positions) // 4)
        tops = []
        for ranked in (mine, theirs):
            by_utility = sorted(range(len(ranked.positions)), key=lambda at, of=ranked: -of.utilities[at])
            tops.append({request.ids[ranked.positions[at]] for at in by_utility[:k]})
        expected.append(len(tops[0] & tops[1]) / k)
    found = replay_light(light, other, survivors=3).metrics
    assert found["overlap"] == pytest.approx(np.mean(expected))
    assert found["overlap_requests"] == 6
    assert replay_light(light, light, survivors=3).metrics["overlap"] == 1


def test_a_release_is_judged_before_anything_changes(artifacts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    with pytest.raises(ReleaseRefused, match=r"unknown_share is 0\.3333; max_unknown_share allows 0\.1") as told:
        publish_release(store, candidate(artifacts))
    assert "requests.jsonl" in str(told.value.next_step)
    assert not (tmp_path / "store").exists()
    first = publish_release(store, candidate(artifacts), limits=LENIENT)
    assert first.judgement is not None
    assert first.judgement.against is None
    strict = msgspec.structs.replace(LENIENT, max_calibration_current=1e-6)
    with pytest.raises(
        ReleaseRefused, match=r"calibration_current\.click is .*; max_calibration_current allows 1e-06"
    ) as told:
        publish_release(store, candidate(artifacts, 1), limits=strict)
    assert "--limits" in str(told.value.next_step)
    assert store.current("shopping") == first
    second = publish_release(store, candidate(artifacts, 1), limits=strict, override="a new teacher")
    assert second.judgement is not None
    assert second.judgement.against == first.release_id
    assert second.judgement.override == "a new teacher"
    assert store.current("shopping") == second
    with pytest.raises(MismatchError, match="was embedded by"):
        judge(store, Candidate(**{**vars(candidate(artifacts)), "index": artifacts / "shopping-1-index"}), LENIENT)


def test_a_damaged_current_release_does_not_stop_the_publish_that_repairs_it(artifacts: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    first = publish_release(store, candidate(artifacts), limits=LENIENT)
    vectors = store.paths(first).index / "vectors.npy"
    content = vectors.read_bytes()
    vectors.unlink()
    vectors.write_bytes(content[:-1])
    second = publish_release(store, candidate(artifacts), limits=LENIENT)
    assert second.judgement is not None
    assert "the current release cannot be opened" in second.judgement.skipped[0]
    assert vectors.read_bytes() == content


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"query": {}}',
        b'{"event_time": "yesterday", "query": {}, "candidates": ["a"]}',
        b'{"event_time": 0, "query": {}, "candidates": {"ids": ["a", "b"], "bids": [1]}}',
        b'{"event_time": 0, "query": {}, "candidates": {"bids": [1]}}',
    ],
)
def test_a_line_that_is_no_request_is_named(line: bytes) -> None:
    with pytest.raises(ArtifactError, match="here: "):
        read_request(line, "here", "shopping")
