"""What tools of KServe's Open Inference Protocol find below /v2, over the true application."""

import time

import pytest
from fastapi.testclient import TestClient

from service.app import create_app


@pytest.fixture(scope="module")
def client(settings):
    with TestClient(create_app(settings)) as client:
        end = time.monotonic() + 60
        while client.get("/v2/health/ready").status_code != 200 and time.monotonic() < end:
            time.sleep(0.05)
        yield client


@pytest.fixture
def release_id(client):
    serving = client.get("/releases").json()["serving"]
    return next(one["release_id"] for one in serving if one["scenario"] == "shopping")


def test_health_is_that_of_our_own_routes(client):
    assert client.get("/v2/health/live").json() == {"live": True}
    answer = client.get("/v2/health/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": client.get("/health/ready").json()["ready"]})


def test_an_empty_store_is_live_and_not_ready(settings, tmp_path):
    with TestClient(create_app(settings.model_copy(update={"store": tmp_path / "empty"}))) as client:
        assert client.get("/v2/health/live").status_code == 200
        answer = client.get("/v2/health/ready")
        assert (answer.status_code, answer.json()) == (503, {"ready": False})
        assert client.get("/v2/models/shopping/ready").status_code == 404


def test_the_server_tells_its_name(client):
    told = client.get("/v2").json()
    assert told["name"] == "adsieve"
    assert told["extensions"] == []


def test_a_model_is_a_scenario_and_a_version_a_release(client, release_id):
    model = client.get("/v2/models/shopping").json()
    assert (model["name"], model["versions"]) == ("shopping", [release_id])
    assert client.get("/v2/models/shopping/ready").json() == {"name": "shopping", "ready": True}
    assert client.get(f"/v2/models/shopping/versions/{release_id}").json() == model
    assert client.get(f"/v2/models/shopping/versions/{release_id}/ready").status_code == 200


@pytest.mark.parametrize(
    "path", ["video", "video/ready", "shopping/versions/another", "shopping/versions/another/ready"]
)
def test_what_does_not_serve_is_not_found_in_the_form_of_the_protocol(client, path):
    answer = client.get(f"/v2/models/{path}")
    assert answer.status_code == 404
    assert "nothing answers scenario" in answer.json()["error"]


def test_the_tensors_are_the_columns_of_rank(client, example_query):
    """Every column that the document names is taken and answered by POST /rank, and no other is."""
    model = client.get("/v2/models/shopping").json()
    query, ids = example_query(1), [f"shopping-{i}" for i in range(1, 5)]
    inputs = {one["name"]: one for one in model["inputs"]}
    fields = {
        f"query.{name}.{part}" if isinstance(value, dict) else f"query.{name}"
        for name, value in query.items()
        for part in (value if isinstance(value, dict) else [""])
    }
    assert fields <= set(inputs)
    assert inputs["query.user_ctr"]["datatype"] == "FP32"
    assert inputs["query.country"] == {"name": "query.country", "datatype": "BYTES", "shape": [1]}
    assert inputs["query.watch.ad"]["shape"] == inputs["candidates.ids"]["shape"] == [-1]
    columns = {name.partition(".")[2]: [None] * len(ids) for name in inputs if name.startswith("candidates.")}
    body = {"scenario": "shopping", "query": query, "candidates": {**columns, "ids": ids}}
    answer = client.post("/rank", json=body).json()
    assert answer["warnings"] == []
    ads = answer["ads"]
    heads = {f"ads.{stage}.{task}" for stage in ("light", "heavy") for task in ads[stage]}
    assert {one["name"] for one in model["outputs"]} == {"ads.ids", "ads.utilities", *heads}


def test_the_routes_stand_in_the_document_with_their_types(client):
    document = client.get("/openapi.json").json()
    paths = {path for path in document["paths"] if path.startswith("/v2")}
    assert paths == {
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/{name}",
        "/v2/models/{name}/ready",
        "/v2/models/{name}/versions/{version}",
        "/v2/models/{name}/versions/{version}/ready",
    }
    assert {"ServerMetadata", "ModelMetadata", "TensorMetadata", "ProtocolError"} <= set(
        document["components"]["schemas"]
    )
