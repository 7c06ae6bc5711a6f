"""The light stage with vectors on a device answers as the CPU does, which is the device here, by the same calls."""

import dataclasses
import logging

import msgspec
import numpy as np
import pytest
import torch

from contracts.errors import AdsieveError
from engines.device_memory import DeviceMemory
from engines.gpu import Gpu
from engines.resident import ResidentPins
from indexing.live import LiveIndex
from indexing.overlay_private import private_live_index
from indexing.update_record import Content, Update
from service.deadline import Deadline
from service.device_light import DeviceLight, open_device, with_device
from service.light import score_here, score_pool
from service.pools import Pool
from service.ranker import rank
from service.releases import Snapshot, load_release
from service.wire import decode_request
from towers.serving import quantise_vectors

LATER = 1_775_000_000_000_000


CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)


def moved(snapshot, device):
    """The same releases, each with its vectors on a device."""
    on_device = {name: with_device(one, "cuda", Gpu(device=device)) for name, one in snapshot.releases.items()}
    assert all(one.device is not None for one in on_device.values())
    return Snapshot(on_device)


@pytest.fixture(scope="module", params=["cpu", CUDA])
def on_device(request, snapshot):
    return moved(snapshot, request.param)


def answers(body, snapshot, on_device, settings):
    request = decode_request(msgspec.json.encode({"event_time": "2026-03-01T12:00:00Z"} | body))
    return [rank(request, held, settings, Deadline()).response for held in (snapshot, on_device)]


def check_alike(here, there):
    """Equal but for rounding; utilities this far apart are in no order."""
    assert there.dropped == here.dropped
    assert there.ads.ids == here.ads.ids
    assert (there.ads.heavy is None, there.degraded) == (here.ads.heavy is None, here.degraded)
    np.testing.assert_allclose(there.ads.utilities, here.ads.utilities, rtol=1e-5)
    for task, values in here.ads.light.items():
        np.testing.assert_allclose(there.ads.light[task], values, rtol=1e-5)


@pytest.mark.parametrize("scenario", ["standard", "shopping", "auto"])
@pytest.mark.parametrize("change", [{}, {"unknown_ads": "score"}, {"explore_share": 0.2}, {"inactive_ads": "rank"}])
def test_answers_are_those_of_the_cpu(snapshot, on_device, settings, example_query, scenario, change):
    settings = settings.model_copy(update=change)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        ids = [f"{kind}-{number}" for kind in ("standard", "shopping") for number in rng.permutation(3_000)[:400]]
        columns = {
            "ids": [*ids, ids[3], "unknown"],
            "objectives": [None, "click", "conversion", "impression"] * 200 + [None] * 2,
        }
        body = {"scenario": scenario, "query": example_query(seed), "candidates": columns, "survivors": 30}
        body |= {"stage": "light" if seed % 2 else "full", "request_id": str(seed), "explain": seed == 3}
        here, there = answers(body, snapshot, on_device, settings)
        check_alike(here, there)
        if seed == 3:
            np.testing.assert_allclose(
                [value or 0.0 for value in there.explain.candidates.light_utilities],
                [value or 0.0 for value in here.explain.candidates.light_utilities],
                rtol=1e-5,
            )


def test_retrieved_ads_and_more_survivors_than_the_device_gives(snapshot, on_device, settings, example_query):
    for survivors in (10, 2_000):
        body = {"scenario": "standard", "query": example_query(1), "survivors": survivors, "stage": "light"}
        check_alike(*answers(body, snapshot, on_device, settings))


def test_scores_of_the_others_are_there_when_asked(snapshot, on_device):
    loaded = on_device.releases["standard"]
    pool, query = sample(loaded, 500), np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    there, here = score_pool(loaded, pool, query, survivors=20), score_here(loaded, pool, query)
    assert there.best(500) is None
    np.testing.assert_allclose(there.logits, here.logits, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(there.utilities, here.utilities, rtol=1e-5)
    places = np.arange(500)
    np.testing.assert_allclose(there.columns_at(places), here.columns_at(places), rtol=1e-5)
    places = there.best(20)[0][::-1]
    np.testing.assert_allclose(there.columns_at(places), here.columns_at(places), rtol=1e-5)


def sample(loaded, count):
    rng = np.random.default_rng(count)
    rows = np.append(rng.permutation(len(loaded.index))[: count - 1].astype(np.int32), np.int32(-1))
    return Pool(
        positions=np.arange(count), rows=rows, bids=rng.uniform(0, 2, count), objectives=rng.integers(0, 3, count)
    )


def test_an_int8_index_is_scored_by_its_scales(snapshot):
    loaded = snapshot.releases["standard"]
    vectors, scales = quantise_vectors(np.asarray(loaded.index.vectors, np.float32), num_heads=2)
    index = dataclasses.replace(loaded.index, vectors=vectors, scales=scales)
    loaded = dataclasses.replace(loaded, live=LiveIndex(index, loaded.schema))
    there = dataclasses.replace(loaded, device=open_device(loaded, Gpu(device="cpu")))
    pool, query = sample(loaded, 300), np.random.default_rng(1).normal(size=(2, 6)).astype(np.float32)
    here = score_here(loaded, pool, query)
    np.testing.assert_allclose(score_pool(there, pool, query).logits, here.logits, rtol=1e-5, atol=1e-5)
    found = score_pool(there, pool, query, survivors=25).best(25)[0]
    np.testing.assert_array_equal(found, np.argsort(-here.utilities, kind="stable")[:25])


@pytest.fixture
def updated(own_world):
    """A release before and after updates: new and changed ads, a takedown, a budget, a bid."""
    release = own_world.store.current("standard")

    def load():
        def open_live(index, tower, heavy):
            return private_live_index(index, tower, heavy, own_world.store.update_log())

        paths = own_world.store.paths(release)
        return load_release(release, paths, serving=Snapshot(), open_live=open_live, engine_threads=1)

    def content(ad_id, key, price):
        given = {"ad_key": key, "tags": ["t1"], "price": price}
        return Update(
            ad_id=ad_id, at=LATER, bid=50.0, content=Content(scenario="standard", valid_from=LATER, features=given)
        )

    before = load()
    log = own_world.store.update_log()
    log.append([content("new-1", "key-4", 3.0), content("standard-1", "key-9", 9.0)])
    log.append([Update(ad_id="standard-2", at=LATER, takedown=True), Update(ad_id="standard-4", at=LATER, budget=0.0)])
    log.append([content("new-2", "key-5", 1.0), Update(ad_id="standard-6", at=LATER, bid=90.0)])
    return before, load()


def test_updates_of_the_day_reach_the_device(updated, settings, example_query):
    before, after = updated
    first = with_device(before, "cuda", Gpu(device="cpu"))
    there = dataclasses.replace(after, device=first.device)  # as when an overlay takes the place of another
    ids = ["new-1", "new-2", *(f"standard-{number}" for number in range(1, 12) if number != 7)]
    body = {"scenario": "standard", "query": example_query(2), "candidates": ids, "survivors": 6}
    for _ in range(2):
        here, found = answers(body, Snapshot({"standard": after}), Snapshot({"standard": there}), settings)
        check_alike(here, found)
        assert {"new-1", "new-2", "standard-1", "standard-6"} <= set(found.ads.ids)
        assert {"standard-2", "standard-4"} <= set(found.dropped.inactive)
    here, found = answers(body, Snapshot({"standard": before}), Snapshot({"standard": first}), settings)
    check_alike(here, found)
    assert found.dropped.unknown == ["new-1", "new-2"]


def test_without_room_new_ads_are_scored_by_the_cpu(updated, settings, example_query, caplog):
    _, after = updated
    index = after.index
    full = DeviceLight(ResidentPins(index.vectors, index.bias, None, spare=2, gpu=Gpu(device="cpu")), len(index))
    there = dataclasses.replace(after, device=full)
    body = {"scenario": "standard", "query": example_query(2), "candidates": ["new-1", "new-2", "standard-6"]}
    for _ in range(2):
        check_alike(*answers(body, Snapshot({"standard": after}), Snapshot({"standard": there}), settings))
    assert caplog.text.count("the device has no room for more new ads") == 1


def test_what_cannot_be_on_a_device_stays_on_the_cpu(snapshot, caplog, monkeypatch):
    loaded = snapshot.releases["standard"]
    with caplog.at_level(logging.WARNING):
        assert with_device(loaded, "cuda", Gpu(device="cpu", memory=DeviceMemory(1_000))).device is None
    assert "runs on the CPU: vectors needs" in caplog.text
    assert with_device(loaded, "cpu", Gpu(device="cpu")).device is None
    monkeypatch.setattr("service.device_light.TOLERANCE", -1.0)
    assert with_device(loaded, "auto", Gpu(device="cpu")).device is None
    with pytest.raises(AdsieveError, match="the light stage on the device is .* from the CPU's, allowed -1"):
        with_device(loaded, "cuda", Gpu(device="cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_auto_is_the_cpu_and_cuda_says_what_is_missing(snapshot):
    loaded = snapshot.releases["standard"]
    assert with_device(loaded, "auto", Gpu()) is loaded
    with pytest.raises(AdsieveError, match="a resident index needs a CUDA device"):
        with_device(loaded, "cuda", Gpu())
