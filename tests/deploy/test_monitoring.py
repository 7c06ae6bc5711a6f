"""Dashboard, alerts and recording rules name only what the service exports, with the labels that it gives."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import promql_parser as promql
import pytest
from starlette.testclient import TestClient

from processes import free_port
from service.app import create_app
from service.heavy_role import create_heavy_app
from service.settings import Settings
from service.telemetry import Telemetry

TARGET_LABELS = {"job", "instance"}
HISTOGRAM = ("_bucket", "_sum", "_count")


def exported(text: str) -> dict[str, str]:
    """Kind of each metric of an exposition, by the name under which its HELP and TYPE lines tell of it."""
    helped = set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert helped == set(kinds)
    return {name: kind for name, kind in kinds.items() if not name.endswith("_created")}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory, servers) -> dict[str, str]:
    """Of both roles, live over an empty store."""
    settings = Settings(store=tmp_path_factory.mktemp("empty") / "store", poll_interval_s=0.05, update_interval_s=0.05)
    found = {}
    for create in (create_app, create_heavy_app):
        with TestClient(create(settings)) as client:
            if create is create_app:  # told once the log of updates was looked for
                servers.wait_until(lambda: "adsieve_update_log_readable" in client.get("/metrics").text)
            found |= exported(client.get("/metrics").text)
    return found


@pytest.fixture(scope="module")
def labels(kinds) -> dict[str, set[str]]:
    """Names of labels of each series, by its name as expressions write it."""
    telemetry, found = Telemetry(), {}
    families = [*telemetry.serving.collect(), *telemetry._registry._names_to_collectors.values()]
    of_family = {getattr(one, "name", None) or getattr(one, "_name", ""): set(one._labelnames or ()) for one in families
                 if hasattr(one, "_labelnames")}  # fmt: skip
    for name, kind in kinds.items():
        own = of_family.get(name, of_family.get(name.removesuffix("_total"), set()))
        if kind == "histogram":
            found |= {name + suffix: own | ({"le"} if suffix == "_bucket" else set()) for suffix in HISTOGRAM}
        else:
            found[name] = own
    return found


def rules(deploy: Path, documents) -> list[dict]:
    return [rule for group in documents(deploy / "monitoring/rules.yaml")[0]["groups"] for rule in group["rules"]]


def dashboard(deploy: Path) -> dict:
    return json.loads((deploy / "monitoring/grafana/adsieve.json").read_text())


def dashboard_expressions(board: dict) -> Iterator[str]:
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (annotation["expr"] for annotation in board["annotations"]["list"])


def labels_of(expression, known: dict[str, set[str]]) -> set[str]:
    """Labels that a result may carry; raises where a selector, a grouping or a matching names one that is not there."""
    match type(expression).__name__:
        case "VectorSelector":
            own = known[expression.name]
            assert {matcher.name for matcher in expression.matchers.matchers} <= own, expression.prettify()
            return own
        case "MatrixSelector":
            return labels_of(expression.vector_selector, known)
        case "AggregateExpr":
            inner = labels_of(expression.expr, known)
            if expression.modifier is None:
                return inner if str(expression.op) in ("topk", "bottomk") else set()
            assert str(expression.modifier).startswith("by"), expression.prettify()
            assert set(expression.modifier.labels) <= inner, expression.prettify()
            return set(expression.modifier.labels)
        case "BinaryExpr":
            left, right = labels_of(expression.lhs, known), labels_of(expression.rhs, known)
            matching = expression.modifier.matching if expression.modifier else None
            assert matching is None or set(matching.labels) <= left & right, expression.prettify()
            return left | right
        case "Call":
            inner = set().union(*(labels_of(argument, known) for argument in expression.args))
            return inner - {"le"} if expression.func.name == "histogram_quantile" else inner
        case "ParenExpr" | "UnaryExpr":
            return labels_of(expression.expr, known)
        case "NumberLiteral" | "StringLiteral":
            return set()
    raise NotImplementedError(type(expression).__name__)


def parsed(text: str):
    return promql.parse(text.replace("$__rate_interval", "5m"))


def test_rules_and_dashboard_use_only_what_is_exported(deploy, documents, labels):
    known = {name: own | TARGET_LABELS for name, own in labels.items()} | {"up": TARGET_LABELS}
    for rule in rules(deploy, documents):
        result = labels_of(parsed(rule["expr"]), known)
        if "record" in rule:
            known[rule["record"]] = result
        else:
            shown = re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))
            assert set(shown) <= result, rule["alert"]
    for expression in dashboard_expressions(dashboard(deploy)):
        labels_of(parsed(expression), known)
    for variable in dashboard(deploy)["templating"]["list"][1:]:
        name, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]["query"]).groups()
        assert label in known[name]


def test_what_is_not_exported_is_found(labels):
    known = {name: own | TARGET_LABELS for name, own in labels.items()}
    with pytest.raises(KeyError, match="adsieve_gone"):
        labels_of(parsed("sum(rate(adsieve_gone[5m]))"), known)
    with pytest.raises(AssertionError, match="scenario"):
        labels_of(parsed("sum by (scenario) (adsieve_rank_in_flight)"), known)
    with pytest.raises(AssertionError, match="stage"):
        labels_of(parsed('rate(adsieve_rank_requests_total{stage="light"}[$__rate_interval])'), known)


def test_runbooks_are_sections_of_pages(deploy, repository, documents):
    alerts = [rule for rule in rules(deploy, documents) if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) > 15
    for rule in alerts:
        assert rule["labels"]["severity"] in ("critical", "warning")
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (repository / page).read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
        assert anchor in slugs, rule["alert"]


def test_panels_have_ids_of_their_own_and_do_not_overlap(deploy):
    panels = dashboard(deploy)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


@pytest.mark.slow
def test_a_service_that_ranks_exports_these_labels(world, settings, labels, example_query, servers):
    """The labels that the classes declare are those of the samples of a service with releases."""
    app = create_app(settings)
    with TestClient(app) as client:
        servers.wait_until(lambda: client.get("/health/ready").status_code == 200)
        body = {"scenario": "shopping", "query": example_query(1), "candidates": ["shopping-1", "shopping-2", "nobody"]}
        assert client.post("/rank", json=body).status_code == 200
        assert client.post("/rank", json={"query": 1}).status_code == 422
        text = client.get("/metrics").text
    samples = re.findall(r"^(adsieve_\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE)
    seen = {name: set(re.findall(r'(\w+)="', found)) for name, found in samples if not name.endswith("_created")}
    assert {name: own for name, own in labels.items() if name in seen} == seen
    assert len(seen) > 30


@pytest.mark.apt
@pytest.mark.parametrize("command", ["check rules rules", "test rules rules_test", "check config prometheus"])
def test_promtool_agrees(deploy, installed, command):
    promtool, place = installed("promtool"), deploy / "monitoring"
    done = subprocess.run([promtool, *f"{command}.yaml".split()], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.apt
def test_a_real_prometheus_answers_every_query(
    deploy, documents, installed, settings, servers, example_query, tmp_path
):
    """Scrapes both roles live; what is asked of a metric that is there gives a result, and no rule fails."""
    program, port = installed("prometheus"), free_port()
    heavy_app = create_heavy_app(settings)
    with servers.serving(heavy_app) as heavy:
        app = create_app(settings.model_copy(update={"heavy_url": heavy}))
        with servers.serving(app) as rank:
            jobs = {"adsieve-rank": rank, "adsieve-heavy": heavy}
            with prometheus(program, port, deploy / "monitoring/rules.yaml", jobs, tmp_path) as url:
                servers.wait_until(lambda: httpx.get(f"{rank}/health/ready").status_code == 200)

                def without_answer() -> set[str]:
                    """Panels with a query that finds nothing; one more request was ranked before."""
                    body = {"scenario": "shopping", "query": example_query(1), "candidates": ["shopping-1", "nobody"]}
                    assert httpx.post(f"{rank}/rank", json=body, timeout=30).status_code == 200
                    return {
                        panel["title"]
                        for panel in dashboard(deploy)["panels"]
                        for target in panel.get("targets", ())
                        if not query(url, filled(target["expr"]))
                    }

                # A series that begins with the first request has a rate from its second scrape on.
                servers.wait_until(lambda: without_answer() <= NOT_IN_A_QUIET_SERVICE)
                groups = httpx.get(f"{url}/api/v1/rules").json()["data"]["groups"]
    assert {(rule["name"], rule.get("lastError", "")) for group in groups for rule in group["rules"]} == {
        (rule.get("alert") or rule["record"], "") for rule in rules(deploy, documents)
    }


NOT_IN_A_QUIET_SERVICE = {
    *("5xx", "Degraded", "Problems by kind", "Light order, by reason", "Arms", "Shadows", "Time since the last update"),
    *("Missing features", "Refused releases, failures to follow the store"),
}


def filled(expression: str) -> str:
    """As Grafana fills in its variables."""
    text = expression.replace("$__rate_interval", "1m").replace("$__range", "1m")
    return text.replace("$job", ".*").replace("$scenario", ".*")


def query(url: str, expression: str) -> list:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", (expression, answer)
    return answer["data"]["result"]


@contextmanager
def prometheus(program: str, port: int, rules_file: Path, jobs: dict[str, str], place: Path) -> Iterator[str]:
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules_file)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [url.removeprefix("http://")]}]}
            for job, url in jobs.items()
        ],
    }
    (place / "prometheus.yaml").write_text(json.dumps(configuration))
    options = [f"--config.file={place}/prometheus.yaml", f"--storage.tsdb.path={place}/data"]
    command = [program, *options, f"--web.listen-address=127.0.0.1:{port}"]
    with (place / "log").open("wb") as log, subprocess.Popen(command, stderr=log, stdout=log) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + 60
            while not is_ready(f"{url}/-/ready"):
                assert process.poll() is None, (place / "log").read_text()
                assert time.monotonic() < end
                time.sleep(0.1)
            yield url
        finally:
            process.kill()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
