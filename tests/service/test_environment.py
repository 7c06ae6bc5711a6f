"""Settings from variables: what is wrong is told in a line, with the variable's name, and so is what nobody reads."""

import json
import logging
import os
import subprocess
import sys

import pytest
from pydantic import SecretStr

import adsieve
from contracts.errors import ConfigError
from service.environment import load_settings, unknown_variables
from service.problems import HttpProblem
from service.settings import Settings
from service.tokens import require_token


@pytest.fixture
def variable(monkeypatch):
    def put(name, value):
        monkeypatch.setenv(f"ADSIEVE_{name}", value)

    return put


def test_policies_come_from_the_environment(tmp_path, variable):
    variable("SURVIVORS", "7")
    assert load_settings(tmp_path).survivors == 7
    variable("UNKNOWN_ADS", "maybe")
    with pytest.raises(ConfigError, match="^ADSIEVE_UNKNOWN_ADS: expected 'drop' or 'score', got 'maybe'$"):
        load_settings(tmp_path)


def objects():
    """Names of settings that are objects, and their examples."""
    return {name: field.examples[0] for name, field in Settings.model_fields.items() if isinstance(field.default, dict)}


def test_every_setting_that_is_an_object_has_an_example_that_holds(tmp_path):
    assert objects().keys() == {"ab", "shadow", "survivor_quotas"}
    for name, example in objects().items():
        assert getattr(Settings(store=tmp_path, **{name: json.loads(example)}), name)


@pytest.mark.parametrize("name", ["ab", "shadow", "survivor_quotas"])
@pytest.mark.parametrize("value", ["{", "", "standard=0.5", "{'standard': 0.5}"])
def test_text_that_is_no_json_is_told_with_an_example(tmp_path, variable, name, value):
    variable(name.upper(), value)
    with pytest.raises(ConfigError) as refused:
        load_settings(tmp_path)
    message = str(refused.value)
    assert message.startswith(f"ADSIEVE_{name.upper()}: is no JSON")
    assert f"got {value!r}, expected such as {objects()[name]}" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AB", '{"shopping": {"release": "previous", "share": 2}}', "ADSIEVE_AB: shopping.share: expected less"),
        ("SHADOW", '{"shopping": {"share": 1}}', "ADSIEVE_SHADOW: shopping.release: Field required"),
        ("SURVIVOR_QUOTAS", '{"shopping": -1}', "ADSIEVE_SURVIVOR_QUOTAS: shopping: expected greater"),
        ("SURVIVOR_QUOTAS", '{"a": 0.7, "b": 0.5}', "ADSIEVE_SURVIVOR_QUOTAS: expected shares of at most 1 in sum"),
        ("AB", "[1]", "ADSIEVE_AB: expected a valid dictionary"),
        ("TIMEOUT_MS", "x", "ADSIEVE_TIMEOUT_MS: expected a valid number, got 'x'"),
    ],
)
def test_a_wrong_value_inside_is_named_by_the_variable_and_its_path(tmp_path, variable, name, value, message):
    variable(name, value)
    with pytest.raises(ConfigError) as refused:
        load_settings(tmp_path)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    "url",
    ["localhost:8001", "heavy", "//heavy:1", "ftp://heavy", "http://", "http://a:b", "http://a:99999", " http://a", ""],
)
def test_a_heavy_host_without_a_whole_address_is_refused(tmp_path, variable, url):
    variable("HEAVY_URL", url)
    with pytest.raises(ConfigError) as refused:
        load_settings(tmp_path)
    assert str(refused.value) == f"ADSIEVE_HEAVY_URL: expected http://HOST:PORT, got {url!r}"


@pytest.mark.parametrize("url", ["http://heavy:8001", "https://heavy.internal/ranker/", "http://[::1]:8001"])
def test_whole_addresses_are_taken(tmp_path, variable, url):
    variable("HEAVY_URL", url)
    assert load_settings(tmp_path).heavy_url == url


def test_unknown_variables_are_told_with_the_name_that_was_meant():
    environment = {
        "ADSIEVE_HEAVY_ULR": "http://heavy:8001",
        "adsieve_survivor": "3",
        "ADSIEVE_REDIS_PASSWROD": "x",
        "ADSIEVE_XYZ": "1",
        "PATH": "/bin",
    }
    assert unknown_variables(environment) == [
        "ADSIEVE_HEAVY_ULR is no setting and is ignored, did you mean ADSIEVE_HEAVY_URL?",
        "ADSIEVE_REDIS_PASSWROD is no setting and is ignored, did you mean ADSIEVE_REDIS_PASSWORD?",
        "ADSIEVE_XYZ is no setting and is ignored",
        "adsieve_survivor is no setting and is ignored, did you mean ADSIEVE_SURVIVORS?",
    ]
    known = [f"ADSIEVE_{name.upper()}" for name in Settings.model_fields]
    redis = [f"ADSIEVE_REDIS_{name}" for name in ("CA", "CERT", "KEY", "PASSWORD", "TIMEOUT_S", "ANSWER_TIMEOUT_S")]
    assert unknown_variables(dict.fromkeys([*known, *redis, "ADSIEVE_STORE", "ADSIEVE_KUAIRAND"], "x")) == []


def run(tmp_path, *arguments, **variables):
    command = [sys.executable, "-m", "adsieve", *arguments, "--store", str(tmp_path)]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("rank", "request.json")])
def test_the_commands_tell_it_in_one_line(tmp_path, command):
    ended = run(tmp_path, *command, ADSIEVE_AB="{", ADSIEVE_HEAVY_ULR="http://heavy:8001")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    wrong, following = ended.stderr.splitlines()[-2:]
    assert "ADSIEVE_AB: is no JSON" in wrong
    assert following == "next: correct the variable; docs/reference/settings.md lists every setting"


def test_rank_and_serve_warn_of_variables_that_nobody_reads(tmp_path, monkeypatch, caplog):
    told = "ADSIEVE_HEAVY_ULR is no setting and is ignored, did you mean ADSIEVE_HEAVY_URL?"
    ended = run(tmp_path, "rank", "none.json", ADSIEVE_HEAVY_ULR="http://heavy:8001")
    assert f"warning: {told}" in ended.stderr.splitlines()
    monkeypatch.setenv("ADSIEVE_HEAVY_ULR", "http://heavy:8001")
    monkeypatch.setattr("service.server.serve_process", lambda *arguments: None)
    monkeypatch.setattr("service.logs.set_up_logs", lambda *arguments: None)
    monkeypatch.setattr(sys, "argv", ["adsieve", "serve", "--port", "0", "--store", str(tmp_path)])
    with caplog.at_level(logging.WARNING), pytest.raises(SystemExit):
        adsieve.main()
    assert told in caplog.messages


@pytest.mark.parametrize("name", ["ADMIN_TOKEN", "RANK_TOKEN", "HEAVY_TOKEN"])
@pytest.mark.parametrize("value", ["", " ", "hidden\n", " hidden", "hid\tden"])
def test_a_token_that_is_anybodys_or_nobodys_is_refused_and_not_told(tmp_path, variable, name, value):
    variable(name, value)
    with pytest.raises(ConfigError) as refused:
        load_settings(tmp_path)
    assert str(refused.value).startswith(f"ADSIEVE_{name}: expected a token")
    assert "hid" not in str(refused.value)
    variable(name, "hidden")
    assert getattr(load_settings(tmp_path), name.lower()).get_secret_value() == "hidden"


def test_the_values_that_are_not_told_are_all_that_are_secret():
    secret = {name for name, field in Settings.model_fields.items() if "Secret" in str(field.annotation)}
    assert secret == {name for name in Settings.model_fields if name.endswith("_token")}


def test_an_empty_token_lets_nobody_in():
    for header in (None, "", "Bearer", "Bearer ", "Bearer x"):
        with pytest.raises(HttpProblem):
            require_token(header, SecretStr(""), setting="ADSIEVE_ADMIN_TOKEN")
