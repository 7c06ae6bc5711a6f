"""The console's routes: what they tell, whom, and how little a request can make them do."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urljoin

import msgspec
import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from contracts.artifact import read_manifest
from contracts.bundle import BundleManifest
from contracts.release import IndexManifest
from indexing.update_log import UpdateLog
from indexing.update_record import Update
from service import console_ranking, console_releases
from service.app import create_app
from service.console_access import is_local

TOKEN = {"Authorization": "Bearer secret"}
READS = ("/admin/console/releases", "/admin/console/requests", "/admin/console/requests/shopping/1")
RANK = "/admin/console/rank"


def client_of(settings, **changed):
    """Of an application that follows its store when told to."""
    app = create_app(settings.model_copy(update={"poll_interval_s": 3600.0} | changed))
    app.state.follower.poll()
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def admin(settings):
    with client_of(settings, admin_token=SecretStr("secret")) as client:
        client.headers.update(TOKEN)
        yield client


@pytest.fixture
def own_admin(own_settings):
    with client_of(own_settings, admin_token=SecretStr("secret")) as client:
        client.headers.update(TOKEN)
        yield client


@pytest.fixture
def body(example_query):
    return {
        "request_id": "r-1",
        "scenario": "shopping",
        "query": example_query(1),
        "event_time": "2026-03-01T12:00:00Z",
        "candidates": [f"shopping-{i}" for i in range(1, 20)],
    }


def told(client, scenario):
    listed = client.get("/admin/console/releases").json()
    return next(one for one in listed["scenarios"] if one["scenario"] == scenario)


def samples(client, *, but=()):
    """What is counted, gauges of ages left out."""
    lines = client.get("/metrics").text.splitlines()
    return [line for line in lines if not line.startswith(("#", *but)) and "age_seconds" not in line]


def test_its_data_is_behind_the_admin_token_and_the_page_holds_none(admin, body):
    for header in (None, "Bearer wrong", "Bearer ", "Basic secret", "secret"):
        headers = {"Authorization": header or ""}
        answers = [admin.get(route, headers=headers) for route in READS]
        answers.append(admin.post(RANK, json={"request": body}, headers=headers))
        for answer in answers:
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert "ADSIEVE_ADMIN_TOKEN" in answer.json()["detail"]
    bare = TestClient(admin.app)
    for twice in (["Bearer secret", "Bearer wrong"], ["Bearer wrong", "Bearer secret"], ["Bearer secret"] * 2):
        headers = [("Authorization", one) for one in twice]
        assert bare.get(READS[0], headers=headers).status_code == 401
        assert bare.post("/admin/reload", headers=headers).status_code == 401
    assert bare.get(f"{READS[0]}?token=secret&access_token=secret").status_code == 401
    assert bare.get(READS[0], headers={"Cookie": "token=secret"}).status_code == 401
    assert admin.get("/console", headers={"Authorization": ""}).status_code == 200
    assert [admin.get(route).status_code for route in READS] == [200] * 3


def test_without_a_token_only_this_machine_is_told_and_nobody_rolls_back(settings, body):
    with client_of(settings) as client:
        assert [client.get(route).status_code for route in READS] == [401] * 3
        assert "own machine" in client.get(READS[0]).json()["detail"]
        local = TestClient(client.app, base_url="http://127.0.0.1:8000", client=("127.0.0.1", 1))
        assert [local.get(route).status_code for route in READS] == [200] * 3
        assert local.post(RANK, json={"request": body}).status_code == 200
        assert local.get(READS[0]).json()["may_roll_back"] is False
        assert local.post("/admin/rollback", json={"scenario": "shopping"}).status_code == 401
        refused = [("Host", "evil.example"), ("Sec-Fetch-Site", "cross-site"), ("Origin", "http://localhost:3000")]
        refused += [("X-Forwarded-For", "9.9.9.9"), ("X-Forwarded-Proto", "https"), ("CF-Connecting-IP", "9.9.9.9")]
        for name, value in refused:
            assert local.get(READS[0], headers={name: value}).status_code == 401
            assert local.post(RANK, json={"request": body}, headers={name: value}).status_code == 401
        own = {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
        assert local.post(RANK, json={"request": body}, headers=own).status_code == 200


@pytest.mark.parametrize(
    ("client", "host", "expected"),
    [
        ("127.0.0.1", "localhost:8000", True),
        ("127.9.9.9", "127.0.0.1", True),
        ("::ffff:127.0.0.1", "localhost", True),
        ("::ffff:10.0.0.2", "localhost", False),
        ("::1", "[::1]:8000", True),
        ("10.0.0.2", "localhost", False),
        ("127.0.0.1", "10.0.0.2:8000", False),
        ("127.0.0.1", "localhost.example", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "[::1", False),
        ("", "localhost", False),
        ("testclient", "localhost", False),
    ],
)
def test_what_counts_as_this_machine(client, host, expected):
    assert is_local(client, {"host": host}) is expected


def test_the_page_asks_no_other_host_for_anything(admin):
    page = admin.get("/console")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    for name in ("../settings.py", "..%2Fsettings.py", "nothing.js", "%2e%2e/app.py"):
        assert admin.get(f"/console/{name}").status_code == 404
    for name in ("main.js", "console.css"):
        part = admin.get(f"/console/{name}")
        assert (part.status_code, part.headers["x-content-type-options"]) == (200, "nosniff")
        assert "http://" not in part.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in part.text


@pytest.mark.parametrize("way", ["/console/", "/console/index.html"])
def test_every_way_in_leads_to_the_page_also_behind_the_path_of_a_proxy(admin, way):
    """A proxy that serves ``/tools/...`` by ``/...``: what the browser is told is relative to the address it asked."""
    led = admin.get(way, follow_redirects=False)
    address = urljoin(f"https://proxy.example/tools{way}", led.headers["location"])
    assert (led.status_code, address) == (307, "https://proxy.example/tools/console")
    for link in re.findall(r'(?:href|src)="([^"#]+)"', admin.get("/console").text):
        asked = urljoin(address, link).removeprefix("https://proxy.example/tools")
        assert admin.get(asked, follow_redirects=False).status_code == 200, link


def test_a_file_of_the_page_that_a_browser_keeps_is_not_sent_again(admin):
    for path in ("/console", "/console/main.js"):
        first = admin.get(path)
        assert first.headers["cache-control"] == "no-cache"  # kept, and asked for each time
        again = admin.get(path, headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert admin.get(path, headers={"If-None-Match": '"other"'}).content == first.content


def test_no_answer_is_kept_or_taken_for_a_script(admin, body, monkeypatch):
    """Answers of every kind: data, refusals, routes that there are not, redirects and bugs."""
    answers = [admin.get(path) for path in (*READS, "/admin/nothing", "/admin/reload", "/metrics", "/v2")]
    answers += [admin.get(READS[0], headers={"Authorization": ""}), admin.post(RANK, content=b"{")]
    answers += [admin.post(RANK, json={"request": body}), admin.post("/admin/rollback", json={"scenario": "video"})]
    monkeypatch.setattr("service.console_routes.saved_requests", None)
    answers += [admin.get("/admin/console/requests")]
    assert {200, 400, 401, 404, 405, 422, 500} == {answer.status_code for answer in answers}
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
    for path in ("/console/", "/console/nothing", "/console", "/console/main.js"):
        assert admin.get(path, follow_redirects=False).headers["x-content-type-options"] == "nosniff"


def test_head_is_answered_as_get_is_without_the_body(admin):
    for path in ("/console", "/health/ready", "/admin/console/requests"):
        asked, got = admin.head(path), admin.get(path)
        assert (asked.status_code, asked.content) == (got.status_code, b"") == (200, b"")
        assert asked.headers == got.headers
    assert admin.head("/rank").status_code == 405


def test_releases_are_told_as_their_manifests_have_them(own_admin, own_world):
    first = own_world.store.current("shopping")
    before = told(own_admin, "shopping")
    assert (before["current"], before["serving"], before["rollback_to"]) == (first.release_id,) * 2 + (None,)
    second = own_world.publish("shopping", 1)
    own_world.store.pin("shopping", first.release_id)
    own_admin.post("/admin/reload")
    now = told(own_admin, "shopping")
    assert (now["current"], now["serving"], now["rollback_to"]) == (
        second.release_id,
        second.release_id,
        first.release_id,
    )
    assert [one["release_id"] for one in now["releases"]] == [second.release_id, first.release_id]
    assert [one["state"] for one in now["releases"]] == ["current", "earlier"]
    assert [one["pinned"] for one in now["releases"]] == [False, True]
    assert [one["is_serving"] for one in now["releases"]] == [True, False]
    paths = own_world.store.paths(second)
    index = read_manifest(paths.index, IndexManifest)
    tower = read_manifest(paths.two_tower, BundleManifest)
    one = now["releases"][0]
    assert one["two_tower_metrics"] == console_releases.flat(tower.metrics)
    assert (one["num_ads"], one["watermark"]) == (index.num_ads, index.watermark)
    assert now["engines"] == {"query_tower": "onnxruntime_cpu", "light": "cpu", "heavy": "onnxruntime_cpu"}
    assert own_admin.get("/admin/console/releases").json()["may_roll_back"] is True


def test_long_lists_of_releases_are_cut_and_damage_is_told(own_admin, own_world, monkeypatch):
    own_world.publish("shopping", 1)
    own_world.publish("shopping", 0)
    monkeypatch.setattr(console_releases, "MAX_RELEASES", 2)
    cut = told(own_admin, "shopping")
    assert (len(cut["releases"]), cut["omitted"]) == (2, 1)
    manifest = own_world.store.paths(own_world.store.current("shopping")).index / "manifest.json"
    manifest.unlink()  # it is shared with what it was copied from
    manifest.write_text("{")
    broken = told(own_admin, "shopping")["releases"][0]
    assert (broken["num_ads"], broken["watermark"]) == (None, None)
    (own_world.root / "current" / "shopping.json").write_text("{")
    lost = told(own_admin, "shopping")
    assert "current/shopping.json" in lost["error"]
    assert (lost["current"], lost["rollback_to"]) == (None, None)
    assert {one["state"] for one in lost["releases"]} <= {"aside", "pruned"}
    assert told(own_admin, "standard")["error"] is None


def test_a_rollback_moves_only_what_its_caller_saw(own_admin, own_world):
    first = own_world.store.current("shopping")
    second = own_world.publish("shopping", 1)
    stale = own_admin.post("/admin/rollback", json={"scenario": "shopping", "current": first.release_id})
    assert stale.status_code == 409
    assert f"is {second.release_id}, not {first.release_id}" in stale.json()["detail"]
    assert own_world.store.current("shopping").release_id == second.release_id
    moved = own_admin.post("/admin/rollback", json={"scenario": "shopping", "current": second.release_id})
    assert (moved.status_code, moved.json()["release_id"]) == (200, first.release_id)


def test_two_who_confirm_the_same_rollback_go_one_release_back(own_admin, own_world):
    releases = [own_world.store.current("shopping"), *(own_world.publish("shopping", one) for one in (1, 0))]
    asked = {"scenario": "shopping", "current": releases[2].release_id}
    at_once = threading.Barrier(2)

    def confirm(_):
        at_once.wait(30)
        return own_admin.post("/admin/rollback", json=asked).status_code

    with ThreadPoolExecutor() as threads:
        assert sorted(threads.map(confirm, range(2))) == [200, 409]
    assert own_world.store.current("shopping") == releases[1]


def test_a_release_that_is_pruned_while_it_loads_is_told_and_no_fault(own_admin, own_world, body, monkeypatch):
    first = own_world.store.current("shopping")
    own_world.publish("shopping", 1)
    own_admin.post("/admin/reload")

    def gone(*given, **options):
        raise FileNotFoundError(2, "No such file or directory", "weights.safetensors")

    monkeypatch.setattr(console_ranking, "load_release", gone)
    answer = own_admin.post(RANK, json={"request": body, "against": first.release_id})
    assert answer.status_code == 409
    assert f"{first.release_id!r} of scenario 'shopping' cannot be read" in answer.json()["detail"]
    assert own_admin.post(RANK, json={"request": body}).status_code == 200


def test_saved_requests_are_listed_and_each_is_one_that_ranks(admin, snapshot):
    listed = admin.get("/admin/console/requests").json()["requests"]
    assert [(one["scenario"], one["number"]) for one in listed] == [
        (scenario, number) for scenario in ("shopping", "standard") for number in (1, 2, 3)
    ]
    for one in listed:
        saved = admin.get(f"/admin/console/requests/{one['scenario']}/{one['number']}").json()
        assert saved == json.loads(snapshot.releases[one["scenario"]].warm_up_requests[one["number"] - 1])
        assert one["candidates"] == len(saved["candidates"]["ids"])
        assert admin.post(RANK, json={"request": saved}).status_code == 200
    for wrong in (
        "shopping/0",
        "shopping/4",
        "video/1",
        "shopping/-1",
        "shopping/x",
        "..%2F/1",
        "shopping/" + "9" * 5000,
    ):
        assert admin.get(f"/admin/console/requests/{wrong}").status_code == 404


def test_it_ranks_as_the_service_does_and_leaves_no_trace(settings, body, tmp_path):
    with client_of(settings, admin_token=SecretStr("secret"), feedback_dir=tmp_path / "feedback") as client:
        client.headers.update(TOKEN)
        plain = client.post("/rank", json=body | {"explain": True}).json()
        before = samples(client, but=("adsieve_feedback_waiting",))
        ranked = client.post(RANK, json={"request": body}).json()
        assert samples(client, but=("adsieve_feedback_waiting",)) == before
    answer = ranked["serving"]["answer"]
    assert ranked["against"] is None
    for part in ("ads", "dropped", "release", "explain"):
        assert answer[part] == plain[part]
    logged = b"".join(path.read_bytes() for path in (tmp_path / "feedback").rglob("*.parquet"))
    assert logged.count(b"r-1") >= 1


def test_two_releases_rank_the_same_request_and_the_other_is_let_go(own_admin, own_world, own_settings, body):
    UpdateLog(own_world.root / "updates").append([Update(ad_id="shopping-9", at=0, takedown=True)])
    first = own_world.store.current("shopping")
    alone = own_admin.post(RANK, json={"request": body}).json()["serving"]["answer"]
    second = own_world.publish("shopping", 1)
    own_admin.post("/admin/reload")
    both = own_admin.post(RANK, json={"request": body, "against": first.release_id}).json()
    assert both["serving"]["releases"] == {"shopping": second.release_id}
    assert both["against"]["releases"] == {"shopping": first.release_id}
    assert both["against"]["load_ms"] > 0
    other = both["against"]["answer"]
    assert other["ads"]["light"] != both["serving"]["answer"]["ads"]["light"]
    assert other["dropped"]["inactive"].count("shopping-9") == 1  # the updates of the day hold for it too
    kept = [ad_id for ad_id in alone["ads"]["ids"] if ad_id != "shopping-9"]
    assert other["ads"]["ids"] == kept
    held = {loaded.release.release_id for loaded in own_admin.app.state.follower.snapshot.loaded()}
    assert first.release_id not in held
    assert not list((own_world.root / "hosts").rglob(f"*{first.index}*new*"))


@pytest.mark.parametrize("against", ["../../secret", "standard", "", "shopping-0", "/etc/passwd"])
def test_a_release_that_the_store_does_not_list_is_refused_without_a_look(admin, body, against):
    refused = admin.post(RANK, json={"request": body, "against": against})
    assert (refused.status_code, refused.json()["field"]) == (422, "against")


def test_wrong_requests_name_their_field(admin, body, world):
    current = world.store.current("shopping").release_id
    auto = admin.post(RANK, json={"request": body | {"scenario": "auto"}, "against": current})
    assert (auto.status_code, auto.json()["field"]) == (422, "request.scenario")
    wrong = admin.post(RANK, json={"request": body | {"survivors": 0}})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "request.survivors")
    assert admin.post(RANK, content=b"{").status_code == 400
    long = admin.post(RANK, content=b" " * (4 << 20) + b"{}")
    assert long.status_code == 413
    assert admin.post(RANK, json={"request": body, "against": current}).json()["against"]["load_ms"] < 1000


def test_one_request_is_ranked_at_a_time(admin, body, monkeypatch):
    began, goes_on, rank = threading.Event(), threading.Event(), console_ranking.rank

    def held(*arguments, **options):
        began.set()
        goes_on.wait(30)
        return rank(*arguments, **options)

    monkeypatch.setattr(console_ranking, "rank", held)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(admin.post(RANK, json={"request": body})))
    asking.start()
    began.wait(30)
    refused = admin.post(RANK, json={"request": body})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    goes_on.set()
    asking.join(30)
    assert answers[0].status_code == 200
    assert admin.post(RANK, json={"request": body}).status_code == 200


def test_one_process_of_a_host_compares_at_a_time(own_admin, own_settings, own_world, body, monkeypatch):
    """Two applications are to each other what two workers are."""
    first = own_world.store.current("shopping")
    own_world.publish("shopping", 1)
    own_admin.post("/admin/reload")
    began, goes_on, load = threading.Event(), threading.Event(), console_ranking.load_release

    def held(*given, **options):
        began.set()
        goes_on.wait(30)
        return load(*given, **options)

    monkeypatch.setattr(console_ranking, "load_release", held)
    asked = {"request": body, "against": first.release_id}
    with client_of(own_settings, admin_token=SecretStr("secret")) as other, ThreadPoolExecutor() as threads:
        other.headers.update(TOKEN)
        comparing = threads.submit(own_admin.post, RANK, json=asked)
        assert began.wait(30)
        refused = other.post(RANK, json=asked)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "on this host" in refused.json()["detail"]
        assert other.post(RANK, json={"request": body}).status_code == 200  # what serves takes no memory more
        goes_on.set()
        assert comparing.result(30).status_code == 200
        assert other.post(RANK, json=asked).status_code == 200


def test_it_compares_where_no_directory_of_the_host_can_be_written(own_admin, own_world, body, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(console_ranking, "user_caches", lambda: tmp_path / "file")
    first = own_world.store.current("shopping")
    own_world.publish("shopping", 1)
    own_admin.post("/admin/reload")
    assert own_admin.post(RANK, json={"request": body, "against": first.release_id}).status_code == 200


def test_its_routes_stand_in_the_document_with_their_types(admin):
    document = admin.get("/openapi.json").json()
    routes = {path: list(methods) for path, methods in document["paths"].items() if "console" in path}
    assert routes == {
        "/admin/console/releases": ["get"],
        "/admin/console/requests": ["get"],
        "/admin/console/requests/{scenario}/{number}": ["get"],
        "/admin/console/rank": ["post"],
        "/console": ["get"],
    }
    for path, methods in routes.items():
        if path != "/console":
            assert document["paths"][path][methods[0]]["security"] == [{"admin_token": []}]
    schemas = document["components"]["schemas"]
    assert {"ConsoleReleases", "ConsoleRankRequest", "ConsoleRankResponse", "SavedRequests", "AdReport"} <= set(schemas)
    assert msgspec.json.encode(schemas["ConsoleRankRequest"]).count(b"RankRequest") >= 1
