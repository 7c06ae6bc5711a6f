"""Dockerfiles, compose file, units and scripts pass their linters and keep to what the page promises."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from loading import load

SECRETS = ("REDIS_PASSWORD", "ADMIN_TOKEN", "RANK_TOKEN", "HEAVY_TOKEN", "GRAFANA_PASSWORD")


@pytest.fixture(scope="module")
def try_image(deploy):
    sys.path.insert(0, str(deploy))
    try:
        return load(deploy / "try_image.py")
    finally:
        sys.path.remove(str(deploy))


def run(*command: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, **options)


def dockerfiles(deploy):
    return sorted((deploy / "docker").glob("*.Dockerfile"))


def test_dockerfiles_pass_hadolint(deploy, program):
    assert len(dockerfiles(deploy)) == 3
    done = run(program("hadolint"), *map(str, dockerfiles(deploy)))
    assert done.returncode == 0, done.stdout


def test_scripts_pass_shellcheck(deploy, program):
    done = run(program("shellcheck"), *map(str, sorted(deploy.rglob("*.sh"))))
    assert done.returncode == 0, done.stdout


def test_yaml_passes_yamllint(deploy, program):
    done = run(program("yamllint"), "--strict", "-c", str(deploy / ".yamllint.yaml"), str(deploy))
    assert done.returncode == 0, done.stdout


def test_images_have_a_numeric_user_a_tagged_base_and_no_secret(deploy, try_image):
    for path in dockerfiles(deploy):
        steps = try_image.instructions(path)
        bases = [text.split()[0] for name, text in steps if name == "FROM"]
        assert bases == ["python:3.11-slim"] * 2, path
        last = dict(steps)  # the last of each name
        assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", last["USER"]), path
        assert last["STOPSIGNAL"] == "SIGTERM", path
        assert "HEALTHCHECK" in last, path
        assert not re.search(r"TOKEN|PASSWORD|SECRET", path.read_text()), path


def test_the_context_holds_the_packages_and_nothing_private(repository, try_image, tmp_path):
    declared = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["setuptools"]
    wanted = [f"{name}.py" for name in declared["py-modules"]]
    wanted += [pattern.rstrip("*") + "/__init__.py" for pattern in declared["packages"]["find"]["include"]]
    for name in (*wanted, "requirements/serve.txt", "deploy/nightly.sh", "adlogs/schemas/one.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    private = ["deploy/compose/.env", "tests/test_it.py", "out/store/pointer", "token", "service/.env", "a/b.pyc"]
    for name in (*private, "service/__pycache__/app.pyc", "contracts/x.pyc", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    shutil.copy(repository / ".dockerignore", tmp_path)
    expected = {*wanted, "requirements/serve.txt", "deploy/nightly.sh", "adlogs/schemas/one.yaml"}
    assert set(try_image.context_files(tmp_path)) == expected


SMALL = """
FROM python:3.11-slim AS first
WORKDIR /made
RUN echo built >here
FROM python:3.11-slim
RUN groupadd --gid 10001 someone && useradd --uid 10001 --gid 10001 --no-create-home someone \\
    && install --directory --owner 10001 --group 10001 /own
COPY --from=first /made /made
WORKDIR /made
USER 10001:10001
VOLUME ["/own"]
STOPSIGNAL SIGTERM
CMD ["sh", "-c", "id -u; cat here; touch /own/a /tmp/a && ! touch /a && grep -E 'CapBnd|NoNewPrivs' /proc/self/status"]
"""


def test_an_image_is_tried_under_the_limits_of_a_hardened_container(deploy, tmp_path):
    (tmp_path / "Dockerfile").write_text(SMALL.lstrip())
    done = run(sys.executable, str(deploy / "try_image.py"), str(tmp_path / "Dockerfile"))
    if "skipped" in done.stdout:
        pytest.skip("no right to make namespaces here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-6:] == ["10001", "built", "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
    assert "Read-only file system" in done.stderr
    assert not Path("/made").exists()


def compose(program, deploy, environment: dict[str, str]) -> subprocess.CompletedProcess:
    command = [program("docker-compose"), "-f", "compose.yaml", "--env-file", "/dev/null", "--profile", "jobs"]
    variables = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")} | environment
    return run(*command, "config", "--format", "json", cwd=deploy / "compose", env=variables)


def test_compose_is_valid_and_hardened(deploy, program):
    done = compose(program, deploy, {name: f"a {name}" for name in SECRETS})
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert set(services) == {"rank-1", "rank-2", "heavy", "redis", "prometheus", "grafana", "jobs"}
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert {"cpus", "memory", "pids"} <= service["deploy"]["resources"]["limits"].keys(), name
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", ())), name
        assert "build" in service or "healthcheck" in service, name
        assert ":" in service["image"] or "build" in service, name
    for name in ("rank-1", "rank-2", "heavy"):
        told = services[name]["environment"]
        needed = int(told["ADSIEVE_DRAIN_S"]) + int(told["ADSIEVE_SHUTDOWN_S"]) + 5
        assert services[name]["stop_grace_period"] == "45s"
        assert needed < 45, name


def test_compose_refuses_to_start_without_secrets(deploy, program):
    done = compose(program, deploy, {})
    assert done.returncode != 0
    assert {name for name in SECRETS if name in done.stderr} == set(SECRETS)


def test_the_example_of_the_environment_names_what_compose_asks_for(deploy):
    asked = set(re.findall(r"\$\{(\w+):\?", (deploy / "compose/compose.yaml").read_text()))
    example = (deploy / "compose/.env.example").read_text()
    assert asked == set(SECRETS)
    assert set(re.findall(r"^(\w+)=$", example, re.MULTILINE)) == asked


def test_files_that_compose_mounts_are_there(deploy):
    services = yaml.safe_load((deploy / "compose/compose.yaml").read_text())["services"]
    mounts = [mount for service in services.values() for mount in service["volumes"] if mount.startswith(".")]
    assert len(mounts) == 4
    for mount in mounts:
        assert (deploy / "compose" / mount.split(":")[0]).exists(), mount


def test_units_are_accepted_by_systemd(deploy, installed, tmp_path):
    """With a program that exists in the place of those that an installation brings."""
    for path in (deploy / "systemd").iterdir():
        text = re.sub(r"^ExecStart=/(opt|usr/local)\S+", "ExecStart=/bin/true", path.read_text(), flags=re.MULTILINE)
        (tmp_path / path.name).write_text(text)
    units = [str(path) for path in sorted(tmp_path.glob("*.service")) + sorted(tmp_path.glob("*.timer"))]
    done = run(installed("systemd-analyze"), "verify", "--man=no", *units)
    assert (done.returncode, done.stderr) == (0, "")


def test_units_have_few_rights(deploy):
    for path in sorted((deploy / "systemd").glob("adsieve*.service")):
        if path.name == "adsieve-nightly-failed.service":
            continue
        lines = path.read_text().splitlines()
        for line in ("User=adsieve", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet="):
            assert line in lines, path.name


def test_paths_that_the_pages_name_are_there(repository):
    for page in ("docs/how-to/deploy.md", "deploy/README.md"):
        named = re.findall(r"deploy/[\w./*-]*\w\*?", (repository / page).read_text())
        assert [path for path in named if not list(repository.glob(path))] == [], page
    table = re.findall(r"^\| `(\S+)`", (repository / "deploy/README.md").read_text(), re.MULTILINE)
    assert {path.rstrip("/") for path in table} | {"README.md", "try_service.py"} == {
        path.name for path in (repository / "deploy").iterdir() if not path.name.startswith((".", "_"))
    }


def test_the_night_is_told_what_is_wrong_with_its_settings(deploy):
    for settings, told in (
        ({}, "ADSIEVE_STORE is not set"),
        ({"ADSIEVE_STORE": "store"}, "NIGHTLY_SCENARIOS is not set"),
        (_night(NIGHTLY_SCENARIOS="a;b"), "a;b is no name of a scenario"),
        (_night(NIGHTLY_TWO_TOWER="/nowhere/@"), "/nowhere/shopping is no directory"),
        (_night(NIGHTLY_HEAVY="/nowhere"), "/nowhere is no directory"),
    ):
        done = run("sh", str(deploy / "nightly.sh"), env={"PATH": "/usr/bin:/bin"} | settings)
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def _night(**changes: str) -> dict[str, str]:
    settings = {"ADSIEVE_STORE": "store", "NIGHTLY_SCENARIOS": "shopping", "NIGHTLY_ADS": "ads"}
    return settings | {"NIGHTLY_TWO_TOWER": "/", "NIGHTLY_WORK": "/nowhere"} | changes
