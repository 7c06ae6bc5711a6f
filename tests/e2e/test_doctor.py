"""``adsieve doctor`` as it is called: one line each, JSON, its exit code, and a Redis that is really there."""

import json
from typing import Any

import pytest

import adsieve


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the doctor; exit code and what was printed. That torchrec is imported is another process's work."""
    monkeypatch.setattr("service.doctor.report.import_fault", lambda: None)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["adsieve", "doctor", *words])
        with pytest.raises(SystemExit) as stopped:
            adsieve.main()
        return int(stopped.value.code or 0), capsys.readouterr().out

    return run


def test_this_machine_works_and_every_line_stands_for_something(door: Any) -> None:
    code, text = door()
    assert code == 0, text
    assert "adsieve works here" in text
    assert all(word in text for word in ("libraries", "machine", "engines", "onnxruntime_cpu", "fastest for"))


def test_a_redis_that_keeps_nothing_and_evicts_is_warned_of(door: Any, redis_server: Any) -> None:
    def standing(**settings: str) -> dict[str, str]:
        for name, value in settings.items():
            redis_server.client.config_set(name.replace("_", "-"), value)
        code, text = door("--redis", redis_server.url, "--json")
        assert code == 0, text
        return {one["name"]: one["standing"] for one in json.loads(text)["findings"] if one["section"] == "redis"}

    assert standing(save="", appendonly="no", maxmemory_policy="allkeys-lru") == {
        "server": "ok",
        "persistence": "warn",
        "maxmemory policy": "warn",
    }
    assert standing(appendonly="yes", maxmemory_policy="noeviction") == {
        "server": "ok",
        "persistence": "ok",
        "maxmemory policy": "ok",
    }


def test_what_adsieve_needs_and_does_not_have_is_exit_code_1(door: Any) -> None:
    code, text = door("--redis", "redis://127.0.0.1:1", "--json")
    found = json.loads(text)
    assert (code, found["works"]) == (1, False)
    (failed,) = [one for one in found["findings"] if one["standing"] == "fail"]
    assert failed["name"] == "server"
    assert "correct --redis" in failed["next_step"]
