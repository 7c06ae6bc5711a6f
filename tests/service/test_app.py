"""The HTTP contract, over the true application with real small models."""

import asyncio
import threading
import time

import httpx
import msgspec
import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from indexing.store import DirectoryStore
from service.app import create_app
from service.settings import Settings

TOKEN = "secret"
EVENT_TIME = "2026-03-01T12:00:00Z"


def wait_until(condition, seconds=20.0):
    """Wait for what the follower does in the background."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.01)


def ready(client):
    return client.get("/health/ready").status_code == 200


def serving(client, scenario):
    listed = client.get("/releases").json()["serving"]
    return next(one for one in listed if one["scenario"] == scenario)


def metric(client, name):
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def client(settings):
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        wait_until(lambda: ready(client))
        yield client


@pytest.fixture
def admin(own_settings):
    """A client with the token, of a service that follows its store only when told to."""
    settings = own_settings.model_copy(update={"admin_token": SecretStr(TOKEN), "poll_interval_s": 3600.0})
    with TestClient(create_app(settings)) as client:
        wait_until(lambda: ready(client))
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield client


@pytest.fixture
def body(example_query):
    return {
        "request_id": "r-1",
        "scenario": "shopping",
        "query": example_query(1),
        "event_time": EVENT_TIME,
        "candidates": [f"shopping-{i}" for i in range(1, 20)],
    }


def assert_problem(response, status, field=None):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["type"].startswith("urn:adsieve:problem:")
    assert problem.get("field") == field
    return problem


def test_the_answer_has_the_shape_of_the_contract(client, body, world):
    answer = client.post("/rank", json=body | {"survivors": 5, "limit": 3}).json()
    assert list(answer) == [
        *("request_id", "release", "ads", "dropped", "arm", "warnings", "degraded", "explain", "timing_ms"),
    ]
    assert answer["request_id"] == "r-1"
    release = world.store.current("shopping")
    assert answer["release"] == {
        "shopping": {"two_tower": release.two_tower, "index": release.index, "heavy": release.heavy}
    }
    assert list(answer["ads"]) == ["ids", "utilities", "scenarios", "explored", "light", "heavy"]
    assert answer["ads"]["scenarios"] == ["shopping"] * 3
    assert answer["ads"]["explored"] == [False] * 3
    assert sorted(answer["ads"]["utilities"], reverse=True) == answer["ads"]["utilities"]
    assert {task: len(column) for task, column in answer["ads"]["heavy"].items()} == {"click": 3, "conversion": 3}
    assert list(answer["dropped"]) == ["unknown", "inactive", "filtered", "duplicate", "bid", "scenario"]
    assert list(answer["timing_ms"]) == ["decode", "query_tower", "light", "heavy", "total"]
    assert (answer["arm"], answer["warnings"], answer["degraded"], answer["explain"]) == (None, [], None, None)


def test_messagepack_gives_the_answer_of_json(client, body):
    from_json = client.post("/rank", json=body).json()
    packed = msgspec.msgpack.encode(body)
    response = client.post("/rank", content=packed, headers={"Content-Type": "application/msgpack"})
    assert response.headers["content-type"] == "application/msgpack"
    from_msgpack = msgspec.msgpack.decode(response.content)
    assert from_json.pop("timing_ms").keys() == from_msgpack.pop("timing_ms").keys()
    assert from_json == from_msgpack


def test_an_empty_candidate_list_is_an_answer_without_ads(client, body):
    for scenario in ("shopping", "auto"):
        response = client.post("/rank", json=body | {"candidates": [], "scenario": scenario})
        assert response.status_code == 200
        assert response.json()["ads"]["ids"] == []


def test_unknown_duplicate_and_foreign_ids_are_dropped_and_named(client, body):
    ids = ["shopping-1", "nobody", "standard-1", "shopping-1", "幽霊", "shopping-ü広告-7", "shopping-3"]
    answer = client.post("/rank", json=body | {"candidates": ids}).json()
    assert sorted(answer["ads"]["ids"]) == ["shopping-1", "shopping-ü広告-7"]
    assert answer["dropped"] == {
        "unknown": ["nobody", "幽霊"],
        "inactive": ["shopping-3"],
        "filtered": [],
        "duplicate": ["shopping-1"],
        "bid": [],
        "scenario": ["standard-1"],
    }


def test_negative_and_missing_bids(client, body):
    columns = {"ids": ["shopping-1", "shopping-2", "shopping-5"], "bids": [-1, None, None]}
    answer = client.post("/rank", json=body | {"candidates": columns, "explain": True}).json()
    assert answer["dropped"]["bid"] == ["shopping-1", "shopping-5"]  # shopping-5 has no bid in the index either
    assert answer["ads"]["ids"] == ["shopping-2"]
    only_missing = {"ids": ["shopping-5", "shopping-18"]}
    answer = client.post("/rank", json=body | {"candidates": only_missing, "explain": True}).json()
    assert answer["explain"]["bids"] == [1.0, 1.0]


def test_a_messagepack_nan_bid_drops_the_ad(client, body):
    columns = {"ids": ["shopping-1", "shopping-2"], "bids": [float("nan"), 1.0]}
    packed = msgspec.msgpack.encode(body | {"candidates": columns})
    response = client.post("/rank", content=packed, headers={"Content-Type": "application/msgpack"})
    assert msgspec.msgpack.decode(response.content)["dropped"]["bid"] == ["shopping-1"]


def test_an_unknown_feature_is_ignored_and_named(client, body):
    known = client.post("/rank", json=body).json()
    before = metric(client, "adsieve_unknown_features_total")
    columns = {"ids": body["candidates"], "novelty": [1] * len(body["candidates"])}
    query = body["query"] | {"mood": "good", "watch": body["query"]["watch"] | {"place": ["x"]}}
    answer = client.post("/rank", json=body | {"query": query, "candidates": columns}).json()
    assert sorted(answer["warnings"]) == [
        "unknown feature candidates.novelty ignored",
        "unknown feature query.mood ignored",
        "unknown feature query.watch.place ignored",
    ]
    assert answer["ads"] == known["ads"]
    assert metric(client, "adsieve_unknown_features_total") == before + 3


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"scenario": "video"}, "scenario"),
        ({"query": {"country": {"a": 1}}}, "query.country"),
        ({"query": {"user_ctr": "high"}}, "query.user_ctr"),
        ({"query": {"watch": {"ad": ["a"], "time": []}}}, "query.watch.time"),
        ({"query": {"watch": {"time": ["2026-03-02T00:00:00Z"]}}}, "query.watch.time"),
        ({"query": {"watch": {"ad": ["x"] * 10_001}}}, "query.watch.ad"),
        ({"candidates": ["a"] * 100_001}, "candidates"),
        ({"candidates": {"ids": ["shopping-1"], "objectives": ["visit"]}}, "candidates.objectives[0]"),
        ({"candidates": {"ids": ["shopping-1"], "affinity": ["high"]}}, "candidates.affinity[0]"),
        ({"survivors": 10_001}, "survivors"),
        ({"survivors": -1}, "survivors"),
        ({"timeout_ms": -5}, "timeout_ms"),
        ({"stage": "medium"}, "stage"),
        ({"filter": {}}, "filter"),
    ],
)
def test_a_wrong_value_is_a_422_that_names_its_field(client, body, change, field):
    assert_problem(client.post("/rank", json=body | change), 422, field)


def test_nan_in_features_is_refused(client, body):
    packed = msgspec.msgpack.encode(body | {"query": {"user_ctr": float("nan")}})
    response = client.post("/rank", content=packed, headers={"Content-Type": "application/msgpack"})
    assert_problem(response, 422, "query.user_ctr")
    columns = {"ids": ["shopping-1", "shopping-2"], "affinity": [0.0, float("inf")]}
    packed = msgspec.msgpack.encode(body | {"candidates": columns})
    response = client.post("/rank", content=packed, headers={"Content-Type": "application/msgpack"})
    assert_problem(response, 422, "candidates.affinity[1]")


def test_bodies_that_are_not_parseable(client):
    for content in (b"", b"{", b'{"query": NaN}', b"\xff"):
        assert_problem(client.post("/rank", content=content, headers={"Content-Type": "application/json"}), 400)
    assert_problem(client.post("/rank", content=b"\xc1", headers={"Content-Type": "application/msgpack"}), 400)
    assert_problem(client.post("/rank", content=b"a", headers={"Content-Type": "text/plain"}), 415)


def test_a_body_too_large_is_refused_declared_or_not(settings, body):
    with TestClient(create_app(settings.model_copy(update={"max_body_bytes": 1000}))) as client:
        assert_problem(client.post("/rank", content=b"x" * 1001), 413)
        assert_problem(client.post("/rank", content=iter([b"x" * 600, b"x" * 600])), 413)
        wait_until(lambda: ready(client))
        assert client.post("/rank", json=body).status_code == 200


def test_routes_and_methods_that_do_not_exist_are_problems(client):
    assert_problem(client.get("/nowhere"), 404)
    assert_problem(client.get("/rank"), 405)
    assert client.get("/nowhere").json()["detail"] == "no such route; GET /openapi.json lists every route"
    assert client.get("/rank").json()["detail"] == "expected POST; GET /openapi.json lists every route"


def test_a_bug_is_a_problem_that_shows_nothing_of_it(client):
    def fail():
        raise KeyError("private")

    client.app.add_api_route("/failing", fail)
    problem = assert_problem(client.get("/failing"), 500)
    assert problem["detail"] == "an unexpected error, see the log"


def test_a_mixed_list_is_split_by_scenario_and_merged(client, body):
    ids = ["shopping-1", "standard-1", "nobody", "standard-2", "shopping-2"]
    answer = client.post("/rank", json=body | {"scenario": "auto", "candidates": ids}).json()
    assert sorted(answer["release"]) == ["shopping", "standard"]
    by_id = dict(zip(answer["ads"]["ids"], answer["ads"]["scenarios"], strict=True))
    assert by_id == {ad_id: ad_id.split("-")[0] for ad_id in ids if ad_id != "nobody"}
    assert answer["dropped"]["unknown"] == ["nobody"]
    alone = client.post("/rank", json=body | {"candidates": ids}).json()["ads"]
    utilities = dict(zip(answer["ads"]["ids"], answer["ads"]["utilities"], strict=True))
    assert [utilities[ad_id] for ad_id in alone["ids"]] == pytest.approx(alone["utilities"], rel=1e-5)


def test_without_candidates_the_index_is_searched(client, body, world):
    del body["candidates"]
    everything = client.post("/rank", json=body | {"candidates": world.ads["shopping"]["ad_id"].to_pylist()}).json()
    found = client.post("/rank", json=body | {"stage": "light", "survivors": 10}).json()
    light = client.post(
        "/rank",
        json=body | {"stage": "light", "survivors": 10, "candidates": world.ads["shopping"]["ad_id"].to_pylist()},
    ).json()
    assert everything["dropped"]["inactive"]
    assert len(found["ads"]["ids"]) == 10
    assert set(found["ads"]["ids"]).isdisjoint(everything["dropped"]["inactive"])
    assert found["ads"]["ids"][:5] == light["ads"]["ids"][:5]  # over-fetching makes the best of a small index exact
    filtered = client.post("/rank", json=body | {"filters": {"exclude_advertisers": ["advertiser-1"]}}).json()
    advertisers = dict(
        zip(*(world.ads["shopping"][name].to_pylist() for name in ("ad_id", "advertiser_id")), strict=True)
    )
    assert filtered["ads"]["ids"]
    assert "advertiser-1" not in {advertisers[ad_id] for ad_id in filtered["ads"]["ids"]}
    mixed = client.post("/rank", json=body | {"scenario": "auto", "survivors": 50}).json()
    assert set(mixed["ads"]["scenarios"]) == {"shopping", "standard"}


@pytest.mark.parametrize(
    ("policy", "change", "field"),
    [
        ({"duplicate_ads": "refuse"}, {"candidates": ["shopping-1", "shopping-1"]}, "candidates[1]"),
        (
            {"invalid_bids": "refuse"},
            {"candidates": {"ids": ["shopping-1", "shopping-2"], "bids": [1, -1]}},
            "candidates.bids[1]",
        ),
        ({"unknown_features": "refuse"}, {"query": {"mood": 1}}, "query.mood"),
        ({"missing_features": "refuse"}, {"query": {}}, "query.country"),
    ],
)
def test_strict_policies_refuse(settings, body, policy, change, field):
    with TestClient(create_app(settings.model_copy(update=policy))) as client:
        wait_until(lambda: ready(client))
        assert_problem(client.post("/rank", json=body | change), 422, field)


def test_missing_features_can_be_warned_about(settings, body):
    with TestClient(create_app(settings.model_copy(update={"missing_features": "warn"}))) as client:
        wait_until(lambda: ready(client))
        warnings = client.post("/rank", json=body | {"query": {"country": "DE", "device": "DE"}}).json()["warnings"]
        assert warnings[0] == "missing feature query.user_ctr, its default was used"
        assert 'adsieve_missing_features_total{feature="query.user_ctr"} 1.0' in client.get("/metrics").text


def test_one_request_too_many_is_refused_at_once(settings, body):
    app = create_app(settings.model_copy(update={"max_in_flight": 1, "retry_after_s": 7}))

    async def run():
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://s") as client,
        ):
            while (await client.get("/health/ready")).status_code != 200:
                await asyncio.sleep(0.01)
            go, reading = asyncio.Event(), asyncio.Event()

            async def slow_body():
                reading.set()
                await go.wait()
                yield msgspec.json.encode(body)

            first = asyncio.create_task(client.post("/rank", content=slow_body()))
            await reading.wait()
            refused = await client.post("/rank", json=body)
            go.set()
            return (await first), refused, await client.post("/rank", json=body), await client.get("/metrics")

    first, refused, after, metrics = asyncio.run(run())
    assert first.status_code == after.status_code == 200
    assert_problem(refused, 503)
    assert refused.headers["retry-after"] == "7"
    assert 'adsieve_rank_requests_total{status="503"} 1.0' in metrics.text
    assert 'adsieve_rank_requests_total{status="200"} 2.0' in metrics.text


def test_a_deadline_that_passed_in_the_queue_is_a_503(client, body):
    response = client.post("/rank", json=body | {"timeout_ms": 1e-6})
    assert assert_problem(response, 503)["type"] == "urn:adsieve:problem:deadline"
    assert response.headers["retry-after"] == "1"


def test_an_empty_store_is_alive_but_not_ready_until_a_release_is_published(tmp_path, artifacts, body, caplog):
    with TestClient(create_app(Settings(store=tmp_path / "store", engine_threads=1, poll_interval_s=0.05))) as client:
        assert client.get("/health/live").json() == {"live": True}
        assert client.get("/health/ready").status_code == 503
        wait_until(lambda: client.get("/health/ready").json()["faults"])
        state = client.get("/health/ready").json()
        (fault,) = state.pop("faults")
        assert state == {"ready": False, "loading": 0, "serving": {}, "old": [], "refused": []}
        assert fault["what"] == "store"
        message = f"{tmp_path / 'store'}: holds no release yet, waiting for `adsieve index publish`"
        assert fault["error"] == message
        assert caplog.messages.count(message) == 1
        response = client.post("/rank", json=body)
        assert assert_problem(response, 503)["detail"] == "no release is loaded"
        assert response.headers["retry-after"] == "1"
        DirectoryStore(tmp_path / "store").publish(
            two_tower=artifacts / "shopping-0", heavy=artifacts / "heavy", index=artifacts / "shopping-0-index"
        )
        wait_until(lambda: ready(client))
        assert client.post("/rank", json=body).status_code == 200


def test_a_new_release_is_picked_up_without_dropping_a_request(own_settings, own_world, body):
    with TestClient(create_app(own_settings)) as client:
        wait_until(lambda: ready(client))
        publish_under_requests(client, own_world, body)


def publish_under_requests(client, world, body):
    stop, statuses, versions = threading.Event(), set(), set()

    def ask():
        while not stop.is_set():
            response = client.post("/rank", json=body)
            statuses.add((response.status_code, client.get("/health/ready").status_code))
            release = response.json()["release"]["shopping"]
            versions.add((release["two_tower"], release["index"]))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    published = [world.store.current("shopping")]
    for generation in (1, 0, 1):
        published.append(world.publish("shopping", generation))
        wait_until(lambda: serving(client, "shopping")["release_id"] == published[-1].release_id)
    stop.set()
    for thread in threads:
        thread.join()
    assert statuses == {(200, 200)}
    assert versions <= {(release.two_tower, release.index) for release in published}
    metrics = client.get("/metrics").text
    assert metrics.count("adsieve_release_loaded_timestamp_seconds{") == 2
    assert 'adsieve_engine_info{engine="onnxruntime_cpu",model="query_tower",scenario="standard"} 1.0' in metrics
    assert metrics.count("adsieve_engine_info{") == 6  # two scenarios, three stages
    assert f'release="{published[-1].release_id}"' in metrics


def test_a_corrupt_release_is_refused_loudly_and_the_old_one_serves(admin, body, own_world, caplog):
    good = serving(admin, "shopping")
    release = own_world.publish("shopping", 1)
    vectors = own_world.store.paths(release).index / "vectors.npy"
    content = vectors.read_bytes()
    vectors.unlink()  # never written through: it may be a hard link to the build's own file
    vectors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert admin.post("/admin/reload").json()["refused"]
    state = admin.get("/health/ready")
    assert state.status_code == 200
    refused = state.json()["refused"][0]
    assert (refused["scenario"], refused["release_id"]) == ("shopping", release.release_id)
    assert "vectors.npy: wrong checksum" in refused["error"]
    assert "vectors.npy: wrong checksum" in caplog.text
    assert 'adsieve_release_failures_total{scenario="shopping"}' in admin.get("/metrics").text
    listed = serving(admin, "shopping")
    assert (listed["release_id"], listed["current"]) == (good["release_id"], release.release_id)
    answer = admin.post("/rank", json=body).json()
    assert answer["release"]["shopping"]["index"] == good["index"]
    rolled_back = admin.post("/admin/rollback", json={"scenario": "shopping"}).json()
    assert rolled_back["release_id"] == rolled_back["current"] == good["release_id"]
    assert admin.get("/health/ready").json()["refused"] == []


def test_a_process_that_starts_on_a_corrupt_release_serves_the_one_before(own_world, own_settings, body):
    good = own_world.store.current("shopping")
    (own_world.store.paths(own_world.publish("shopping", 1)).index / "bias.npy").unlink()
    with TestClient(create_app(own_settings)) as client:
        wait_until(lambda: ready(client))
        assert serving(client, "shopping")["release_id"] == good.release_id
        assert client.get("/health/ready").json()["refused"][0]["scenario"] == "shopping"
        assert client.post("/rank", json=body).status_code == 200


def test_rollback_and_reload_over_http(admin, body, own_world):
    first = own_world.store.current("shopping")
    second = own_world.publish("shopping", 1)
    reloaded = admin.post("/admin/reload").json()
    assert {one["scenario"]: one["release_id"] for one in reloaded["serving"]}["shopping"] == second.release_id
    assert admin.post("/rank", json=body).json()["release"]["shopping"]["two_tower"] == second.two_tower
    rolled_back = admin.post("/admin/rollback", json={"scenario": "shopping"})
    assert rolled_back.status_code == 200
    assert rolled_back.json()["release_id"] == first.release_id
    assert own_world.store.current("shopping").release_id == first.release_id
    assert admin.post("/rank", json=body).json()["release"]["shopping"]["two_tower"] == first.two_tower
    assert_problem(admin.post("/admin/rollback", json={"scenario": "video"}), 422, "scenario")
    assert_problem(admin.post("/admin/rollback", json={"scene": "shopping"}), 422, "scene")
    assert_problem(admin.post("/admin/rollback", content=b"{"), 400)


@pytest.mark.parametrize("route", ["/admin/rollback", "/admin/reload"])
def test_admin_routes_need_the_token(admin, route):
    del admin.headers["Authorization"]
    for header in (None, "Bearer wrong", "Bearer ", "Basic secret", "secret", "Bearer sécret"):
        headers = {} if header is None else {"Authorization": header.encode()}
        response = admin.post(route, json={"scenario": "shopping"}, headers=headers)
        assert_problem(response, 401)
        assert response.headers["www-authenticate"] == "Bearer"


def test_without_a_configured_token_nobody_is_admin(client):
    for header in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer None"}):
        refused = client.post("/admin/reload", headers=header)
        assert_problem(refused, 401)
        assert refused.json()["detail"].startswith("ADSIEVE_ADMIN_TOKEN is not set where the service runs")


def test_the_document_shows_the_true_schema(client):
    document = client.get("/openapi.json").json()
    content = document["paths"]["/rank"]["post"]["requestBody"]["content"]
    assert list(content) == ["application/json", "application/msgpack"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/RankRequest"}
    properties = document["components"]["schemas"]["RankRequest"]["properties"]
    assert {"scenario", "query", "candidates", "filters", "survivors", "limit", "stage", "timeout_ms"} <= set(
        properties
    )
    assert "Dropped" in document["components"]["schemas"]
    assert document["paths"]["/admin/reload"]["post"]["security"] == [{"admin_token": []}]
