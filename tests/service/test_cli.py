"""``adsieve rank`` answers as /rank does, and ``adsieve serve`` serves over a real socket."""

import json
import os
import signal
import subprocess
import sys
import time

import httpx
import pytest
import typer
from typer.testing import CliRunner

import service.cli
from contracts.errors import ArtifactError, InputError, RequestError
from processes import free_port

SERVE = "import typer, service.cli; typer.run(service.cli.serve)"


@pytest.fixture
def app():
    app = typer.Typer()
    app.command()(service.cli.rank)
    app.command()(service.cli.serve)
    return app


@pytest.fixture
def request_file(tmp_path, example_query):
    body = {
        "request_id": "r-ü",
        "scenario": "auto",
        "query": example_query(3),
        "event_time": "2026-03-01T12:00:00Z",
        "candidates": {
            "ids": [f"{name}-{i}" for i in range(30) for name in ("shopping", "standard")],
            "affinity": [i / 7 for i in range(60)],
        },
        "survivors": 20,
        "explain": True,
    }
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    return path


@pytest.fixture
def server(world):
    """``adsieve serve`` in a process of its own, ready."""
    port = free_port()
    command = [sys.executable, "-c", SERVE, "--store", str(world.root), "--port", str(port)]
    exact = dict.fromkeys(("ADSIEVE_QUERY_ENGINE", "ADSIEVE_HEAVY_ENGINE"), "onnxruntime_cpu")
    environment = os.environ | exact | {"ADSIEVE_ENGINE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        try:
            wait_until_ready(client, process)
            yield client
        finally:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=20)
    assert process.returncode == 0, output
    assert "Traceback" not in output


def wait_until_ready(client, process):
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(process.communicate()[0])
        try:
            if client.get("/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError("the server did not become ready")


def test_the_command_and_a_real_server_give_the_same_order_and_scores(app, server, request_file, world):
    result = CliRunner().invoke(app, ["rank", str(request_file), "--store", str(world.root), "--json"])
    assert result.exit_code == 0, result.output
    from_command = json.loads(result.stdout)
    from_server = server.post("/rank", content=request_file.read_bytes()).json()
    assert from_command.pop("timing_ms").keys() == from_server.pop("timing_ms").keys()
    assert from_command == from_server
    assert len(from_command["ads"]["ids"]) == 20


def test_the_table_names_ads_scores_and_what_was_dropped(app, request_file, world):
    result = CliRunner().invoke(app, ["rank", str(request_file), "--store", str(world.root)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for part in ("request r-ü", "heavy", "conversion", "shopping-", "total"):
        assert part in result.stdout


def test_the_table_names_up_to_ten_ads_that_were_dropped(app, request_file, world):
    body = json.loads(request_file.read_text())
    strange = [f"[b]strange-{number}[/b]" for number in range(12)]
    for ids, shown in ((strange[:2], strange[:2]), (strange, [*strange[:10], "..."])):
        body["candidates"] = {"ids": ["shopping-1", *ids], "affinity": [0.5] * (1 + len(ids))}
        request_file.write_text(json.dumps(body))
        result = CliRunner().invoke(app, ["rank", str(request_file), "--store", str(world.root)], env={"COLUMNS": "60"})
        assert f"dropped: {len(ids)} unknown: {', '.join(shown)}\n" in result.stdout


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("{", InputError, r"request\.json: the body is not valid application/json"),
        (
            '{"scenario": "video", "query": {}}',
            RequestError,
            "scenario: unknown scenario 'video', expected one of",
        ),
        ('{"scenario": "shopping"}', RequestError, "query: required field is missing"),
    ],
)
def test_bad_requests_are_input_errors(app, request_file, world, content, error, message):
    request_file.write_text(content)
    result = CliRunner().invoke(app, ["rank", str(request_file), "--store", str(world.root)])
    with pytest.raises(error, match=message):
        raise result.exception
    assert result.exception.exit_code == 2


def test_a_missing_file_and_a_corrupt_store_are_told_apart(app, request_file, own_world, tmp_path):
    result = CliRunner().invoke(app, ["rank", str(tmp_path / "none.json"), "--store", str(own_world.root)])
    with pytest.raises(InputError, match=r"none\.json: no such file"):
        raise result.exception
    (own_world.store.paths(own_world.store.current("shopping")).index / "bias.npy").unlink()
    result = CliRunner().invoke(app, ["rank", str(request_file), "--store", str(own_world.root)])
    with pytest.raises(ArtifactError, match=r"bias\.npy: missing"):
        raise result.exception


def test_a_store_without_a_release_is_wrong_usage(app, request_file, tmp_path):
    result = CliRunner().invoke(app, ["rank", str(request_file), "--store", str(tmp_path / "absent")])
    with pytest.raises(InputError, match="absent: holds no release"):
        raise result.exception


def test_an_address_that_is_taken_or_none_of_ours_is_wrong_usage():
    with service.cli.listening("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}: cannot listen there: Address already in use") as told:
            service.cli.listening("127.0.0.1", port)
        assert told.value.next_step == "give another --port, or end what listens there"
    with pytest.raises(InputError, match=r"--host 192\.0\.2\.1 --port 0: cannot listen there: "):
        service.cli.listening("192.0.2.1", 0)


def test_a_store_that_is_a_file_is_refused_and_an_absent_one_is_not(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for store in (file, file / "store" / "deeper"):
        with pytest.raises(InputError, match=f"--store {store}: {file} is a file, expected a directory"):
            service.cli.require_no_file(str(store))
    for store in (tmp_path, tmp_path / "absent" / "store", "redis://localhost:1/0", "relative"):
        service.cli.require_no_file(str(store))


def test_standard_input_and_the_store_of_the_directory_stand_in(app, request_file, world, monkeypatch):
    monkeypatch.chdir(world.root.parent)
    named = CliRunner().invoke(app, ["rank", str(request_file), "--store", str(world.root), "--json"])
    link = world.root.parent / "store"
    if not link.exists():
        link.symlink_to(world.root)
    piped = CliRunner().invoke(app, ["rank", "-", "--json"], input=request_file.read_bytes())
    assert piped.exit_code == 0, piped.output
    answers = [json.loads(result.stdout) for result in (named, piped)]
    assert all(answer.pop("timing_ms") for answer in answers)
    assert answers[0] == answers[1]
    broken = CliRunner().invoke(app, ["rank", "-"], input="{")
    assert isinstance(broken.exception, InputError)
    assert str(broken.exception).startswith("standard input: ")
