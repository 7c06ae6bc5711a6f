"""Manifests: what Kubernetes accepts, and what this service needs of it."""

import inspect
import re
import subprocess
from collections.abc import Iterator

import kubernetes_validate
import pytest
import yaml

from service.cli import serve
from service.environment import unknown_variables

KUBERNETES = ("1.31", "1.37")
WITHOUT_SCHEMA = {"ServiceMonitor", "Kustomization", "Component"}


@pytest.fixture(scope="module")
def manifests(deploy, documents) -> list[dict]:
    """Every whole manifest of base and components; overlays patch them."""
    paths = sorted((deploy / "kubernetes").glob("*/**/*.yaml"))
    found = [one for path in paths if path.name not in ("kustomization.yaml", "heavy.yaml") for one in documents(path)]
    return found + documents(deploy / "kubernetes/base/heavy.yaml")


@pytest.fixture(scope="module", params=["dev", "cpu", "gpu"])
def built(request, deploy, installed) -> list[dict]:
    """What an overlay makes of them."""
    done = subprocess.run(
        [installed("kubectl"), "kustomize", str(deploy / "kubernetes/overlays" / request.param)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def pods(manifests: list[dict]) -> Iterator[tuple[str, dict]]:
    for one in manifests:
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield one["metadata"]["name"], one["spec"]["template"]
        elif one["kind"] == "CronJob":
            yield one["metadata"]["name"], one["spec"]["jobTemplate"]["spec"]["template"]


def check_schemas(manifests: list[dict], version: str) -> None:
    for one in manifests:
        if one["kind"] not in WITHOUT_SCHEMA:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_follow_the_schemas(manifests, version):
    check_schemas(manifests, version)


def test_a_misspelt_field_is_found(manifests):
    deployment = next(one for one in manifests if one["kind"] == "Deployment")
    wrong = {**deployment, "spec": {**deployment["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        check_schemas([wrong], KUBERNETES[-1])


def test_overlays_follow_the_schemas(built):
    check_schemas(built, KUBERNETES[-1])
    assert {one["metadata"]["namespace"] for one in built if one["kind"] != "Namespace"} == {"adsieve"}
    images = {container["image"] for _, pod in pods(built) for container in pod["spec"]["containers"]}
    assert not {image for image in images if image.endswith(":latest")}
    check_pods(built)


def test_pods_have_few_rights_and_say_what_they_need(manifests):
    check_pods(manifests)


def check_pods(manifests: list[dict]) -> None:
    """The restricted profile of the pod security standards, and more."""
    for name, template in pods(manifests):
        pod = template["spec"]
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] >= 999, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), name
        for container in pod["containers"]:
            expected = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["securityContext"] == expected, name
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name
            assert "memory" in container["resources"]["limits"], name
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            claims = {volume["name"] for volume in pod.get("volumes", ())} or {"data"}
            assert mounted == claims, name


def service_pods(manifests: list[dict]) -> dict[str, dict]:
    found = {name: template["spec"] for name, template in pods(manifests)}
    return {name: found[name] for name in ("rank", "heavy")}


def test_a_stopped_pod_has_the_time_that_it_was_promised(manifests, deploy, documents):
    config = documents(deploy / "kubernetes/base/kustomization.yaml")[0]["configMapGenerator"]
    literals = dict(pair.split("=", 1) for one in config for pair in one["literals"])
    needed = int(literals["ADSIEVE_DRAIN_S"]) + int(literals["ADSIEVE_SHUTDOWN_S"]) + 5
    for name, pod in service_pods(manifests).items():
        assert pod["terminationGracePeriodSeconds"] > needed, name


def test_threads_are_no_more_than_the_cores_asked_for(manifests):
    """A pod without a limit of CPU may use every core of its node, and the service would take them for its own."""
    for name, pod in service_pods(manifests).items():
        container = pod["containers"][0]
        workers = dict(zip(container["args"], container["args"][1:], strict=False)).get("--workers", "1")
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        cores = int(container["resources"]["requests"]["cpu"])
        assert int(workers) * int(variables["ADSIEVE_ENGINE_THREADS"]) <= cores, name


def test_probes_ask_routes_that_are_there(manifests):
    for name, pod in service_pods(manifests).items():
        container = pod["containers"][0]
        probes = ("startupProbe", "livenessProbe", "readinessProbe")
        asked = {probe: container[probe]["httpGet"]["path"] for probe in probes}
        live = {"startupProbe": "/health/live", "livenessProbe": "/health/live"}
        assert asked == live | {"readinessProbe": "/health/ready"}, name
        port = int(container["args"][container["args"].index("--port") + 1])
        assert container["ports"] == [{"name": "http", "containerPort": port}], name


def test_commands_have_only_options_that_serve_has(manifests):
    options = {f"--{name.replace('_', '-')}" for name in inspect.signature(serve).parameters}
    for name, pod in service_pods(manifests).items():
        command, *arguments = pod["containers"][0]["args"]
        assert command == "serve", name
        assert {argument for argument in arguments if argument.startswith("-")} <= options, name


def test_objects_point_at_one_another(manifests, deploy, documents):
    templates = dict(pods(manifests))
    by_kind = {(one["kind"], one["metadata"]["name"]): one for one in manifests}
    base = documents(deploy / "kubernetes/base/kustomization.yaml")[0]
    generated = {one["name"] for one in base["configMapGenerator"]}
    for (kind, name), one in by_kind.items():
        if kind == "Service":
            assert one["spec"]["selector"].items() <= templates[name]["metadata"]["labels"].items()
            ports = {port["name"] for port in templates[name]["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
        elif kind == "HorizontalPodAutoscaler":
            assert by_kind["Deployment", one["spec"]["scaleTargetRef"]["name"]]["spec"].get("replicas") is None
        elif kind in ("Deployment", "PodDisruptionBudget"):
            selected = one["spec"]["selector"]["matchLabels"]
            assert selected.items() <= templates[name]["metadata"]["labels"].items()
        elif kind == "NetworkPolicy":
            selected = one["spec"]["podSelector"]["matchLabels"].items()
            assert any(selected <= template["metadata"]["labels"].items() for template in templates.values()), name
    for name, template in templates.items():
        for source in template["spec"]["containers"][0].get("envFrom", ()):
            assert source["configMapRef"]["name"] in generated, name
        for volume in template["spec"].get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in by_kind


def test_variables_are_ones_that_something_reads(deploy, repository):
    """Of manifests, compose file, units and images: settings of the service, or what the nightly script explains."""
    script = (deploy / "nightly.sh").read_text()
    nightly = set(re.findall(r"^#   (NIGHTLY_[A-Z_]+) ", script, re.MULTILINE))
    assert nightly == set(re.findall(r"\$\{?:?(NIGHTLY_[A-Z_]+)", script)) | {"NIGHTLY_SCENARIOS"}
    kinds = ("*.yaml", "*.service", "*.env.example", "*.Dockerfile")
    texts = [path.read_text() for kind in kinds for path in sorted(deploy.rglob(kind))]
    used = set(re.findall(r"\b(ADSIEVE_[A-Z_]+|NIGHTLY_[A-Z_]+)\b", " ".join(texts)))
    assert len(used) > 15
    assert unknown_variables(dict.fromkeys(used, "")) == []
    assert {name for name in used if name.startswith("NIGHTLY_")} <= nightly


def test_the_page_makes_the_keys_of_the_secret(manifests, repository):
    asked = {
        variable["valueFrom"]["secretKeyRef"]["key"]
        for _, template in pods(manifests)
        for variable in template["spec"]["containers"][0].get("env", ())
        if "valueFrom" in variable
    }
    page = (repository / "docs/how-to/deploy.md").read_text()
    assert asked == set(re.findall(r"--from-literal=([a-z-]+)=", page))
