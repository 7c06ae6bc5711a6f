"""`adsieve demo`: the product's commands in order, on a small log, up to ranked ads and a table of figures."""

import json
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from contracts.console import print_json, print_table, table
from contracts.errors import AdsieveError, InputError

DEMO_MARK = ".adsieve-demo"
SURVIVORS = 100
DEMO_REQUESTS = 20  # sent to the server in each scenario, and as many mixed ones

Command = Callable[[list[str]], object]
"""Runs one of our own commands in this process."""


def run_demo(command: Command, *, out: Path, preset: str, kuairand: Path | None, json: bool) -> None:
    """Run every step, print its command, and end with the figures, which stay in ``out/summary.json``.

    With ``json`` the figures are all that goes to standard output.
    """
    with redirect_stdout(sys.stderr) if json else nullcontext():
        summary = _demonstrate(command, out, preset, kuairand)
    if json:
        print_json(summary)
    else:
        _print_summary(summary, out)


def _demonstrate(command: Command, out: Path, preset: str, kuairand: Path | None) -> dict[str, Any]:
    began = time.monotonic()
    steps = _Steps(command)
    with _replacing(out):
        plan = _kuairand_plan(steps, kuairand, out / "log") if kuairand else _simulated_plan(steps, preset, out / "log")
    _teach(steps, plan, out)
    for scenario, schema in plan.schemas.items():
        _distil(steps, plan, scenario, schema, out)
    latencies = _serve_and_rank(steps, plan, out)
    summary = _summary(plan, out) | {"latency_ms": latencies, "seconds": round(time.monotonic() - began, 1)}
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return summary


@dataclass(frozen=True)
class _Steps:
    """Runs our own commands, each after showing it."""

    command: Command

    def __call__(self, *words: str) -> None:
        print(f"\n$ adsieve {shlex.join(words)}", flush=True)
        self.command(list(words))


@dataclass(frozen=True)
class _Plan:
    """Which part of a log serves what: the teacher learns before the student, and neither sees the last part.

    ``schemas`` names the bundled schema of each scenario's towers; options are those of the training commands.
    """

    log: Path
    teacher_until: str
    student_until: str
    heavy_schema: str
    schemas: dict[str, str]
    heavy_options: tuple[str, ...] = ()
    distill_options: tuple[str, ...] = ()


def _simulated_plan(run: _Steps, preset: str, log: Path) -> _Plan:
    run("simulate", str(log), "--preset", preset)
    first, days = _days(log)
    return _Plan(
        log=log,
        teacher_until=(first + timedelta(days=days // 2)).isoformat(),
        student_until=(first + timedelta(days=days - 1)).isoformat(),
        heavy_schema="simulated_heavy",
        schemas={"standard": "simulated_standard", "shopping": "simulated_shopping"},
    )


def _kuairand_plan(run: _Steps, source: Path, log: Path) -> _Plan:
    """The teacher learns from the first half of the training rows and scores the second half for the student."""
    run("convert", "kuairand", str(source), "--out", str(log))
    train_until = datetime.fromisoformat(json.loads((log / "split.json").read_text())["train_until"])
    times = sorted(time for time in _event_times(log).to_pylist() if time < train_until)
    return _Plan(
        log=log,
        teacher_until=times[len(times) // 2].isoformat(),
        student_until=train_until.isoformat(),
        heavy_schema="kuairand_heavy",
        schemas={"standard": "kuairand_towers"},
        heavy_options=("--validation-share", "0", "--epochs", "1", "--batch-size", "512", "--learning-rate", "0.002"),
        distill_options=("--epochs", "1"),
    )


def _teach(run: _Steps, plan: _Plan, out: Path) -> None:
    """Train and seal the heavy ranker, then let it score what came after."""
    log, schema, trained, bundle = map(str, (plan.log, out / "heavy.yaml", out / "heavy-run", out / "heavy"))
    until = ("--until", plan.teacher_until)
    run("schema", "fit", plan.heavy_schema, "--logs", log, "--out", schema, *until)
    run("heavy", "train", "--logs", log, "--schema", schema, "--out", trained, *until, *plan.heavy_options)
    run("heavy", "export", "--run", trained, "--logs", log, "--out", bundle)
    run("heavy", "score", "--bundle", bundle, "--logs", log, "--out", str(out / "scored"), "--from", plan.teacher_until)


def _distil(run: _Steps, plan: _Plan, scenario: str, schema_name: str, out: Path) -> None:
    """One scenario: distil, seal, judge on the last part of the log, index and publish."""
    place = out / scenario
    place.mkdir()
    names = ("towers.yaml", "run", "bundle", "report", "index")
    schema, trained, bundle, report, index = (str(place / name) for name in names)
    data = ("--logs", str(plan.log), "--candidates", str(out / "scored" / "candidates"))
    period = ("--from", plan.teacher_until, "--until", plan.student_until)
    unseen = ("--from", plan.student_until)
    model = ("--schema", schema, "--scenario", scenario)
    run("schema", "fit", schema_name, "--logs", str(plan.log), "--out", schema, "--until", plan.student_until)
    serving = ("--store", str(out / "store"))
    run("distill", "train", *data, *model, *period, *serving, "--out", trained, *plan.distill_options)
    run("distill", "publish", "--run", trained, *data, *unseen, *serving, "--out", bundle)
    run("distill", "evaluate", "--bundle", bundle, *data, *unseen, "--out", report)
    bundles = ("--two-tower", bundle, "--heavy", str(out / "heavy"))
    run("index", "build", "--ads", str(plan.log / "ads"), *bundles, "--out", index)
    run("index", "publish", *bundles, "--index", index, "--store", str(out / "store"))


def _serve_and_rank(run: _Steps, plan: _Plan, out: Path) -> dict[str, dict[str, float]]:
    """Start a server, send it saved requests of every scenario and mixed ones; median milliseconds by stage."""
    import httpx

    requests = {scenario: _saved_requests(out / scenario / "bundle") for scenario in plan.schemas}
    if len(requests) > 1:
        requests["auto"] = [_mixed(group) for group in zip(*requests.values(), strict=False)]
    with _server(out / "store") as url, httpx.Client(base_url=url, timeout=30) as client:
        answers = {name: [_post(client, body) for body in bodies] for name, bodies in requests.items()}
    first = {name: bodies[0] for name, bodies in requests.items()}
    for name, body in first.items():
        (out / f"request-{name}.json").write_text(json.dumps(body))
        (out / f"answer-{name}.json").write_text(json.dumps(answers[name][0], indent=2))
    run("rank", str(out / f"request-{next(iter(first))}.json"), "--store", str(out / "store"))
    return {name: _median_timing(found) for name, found in answers.items()}


@contextmanager
def _server(store: Path) -> Iterator[str]:
    """A server of its own process on a free port, ready; it is stopped at the end."""
    import httpx

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["serve", "--store", str(store), "--port", str(port), "--log-level", "warning"]
    print(f"\n$ adsieve {shlex.join(command)}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", "adsieve", *command])
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise AdsieveError(f"the server ended with exit code {process.returncode} before it was ready")
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/health/ready").status_code == httpx.codes.OK:
                    break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


def _post(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/rank", json=body)
    if response.is_error:
        raise AdsieveError(f"POST /rank answered {response.status_code}: {response.text}")
    return response.json()


def _saved_requests(bundle: Path) -> list[dict[str, Any]]:
    lines = (bundle / "requests.jsonl").read_text().splitlines()[:DEMO_REQUESTS]
    return [json.loads(line) for line in lines]


def _mixed(requests: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The first request's user with the candidates of all; the service splits them by each ad's own scenario."""
    columns = [request["candidates"] for request in requests]
    shared = set.intersection(*(set(found) for found in columns))
    candidates = {name: [value for found in columns for value in found[name]] for name in sorted(shared)}
    query = {name: value for request in reversed(requests) for name, value in request["query"].items()}
    identity = "+".join(request["request_id"] for request in requests)
    return {**requests[0], "request_id": identity, "scenario": "auto", "query": query, "candidates": candidates}


def _median_timing(answers: list[dict[str, Any]]) -> dict[str, float]:
    return {stage: median(answer["timing_ms"][stage] for answer in answers) for stage in answers[0]["timing_ms"]}


def _summary(plan: _Plan, out: Path) -> dict[str, Any]:
    """The figures of the table, out of the reports."""
    from distill.report_figures import report_figures

    quality, recall = [], []
    for scenario in plan.schemas:
        figures = report_figures(out / scenario / "report" / "report.json", SURVIVORS)
        quality += figures.quality
        recall += figures.recall
    return {"quality": quality, "recall": recall}


def _print_summary(summary: dict[str, Any], out: Path) -> None:
    quality = {
        "scenario": "scenario",
        "slice": "ads",
        "head": "head",
        "kl": "KL",
        "auc_against_teacher": "AUC on\nteacher",
        "student_auc": "student\nAUC",
        "teacher_auc": "teacher\nAUC",
    }
    _print_table("Student against teacher, on a day that trained neither model", quality, summary["quality"])
    if summary["recall"]:
        first = summary["recall"][0]
        title = f"Heavy top 10 within {SURVIVORS} of {first['pool_size'][0]:,} ads, over {first['requests']} requests"
        rankings = {"student": "student", "bid_only": "bid\nonly", "random": "random"}
        _print_table(title, {"scenario": "scenario", "order": "order", **rankings}, summary["recall"])
    rows = [{"request": name, **stages} for name, stages in summary["latency_ms"].items()]
    _print_table("Median milliseconds in the server", {name: name.replace("_", "\n") for name in rows[0]}, rows)
    print(f"{summary['seconds']:.0f} s in all. Reports: {out}/*/report/report.html  Figures: {out}/summary.json")
    called = sys.argv[0] if Path(sys.argv[0]).name == "adsieve" else "adsieve"
    print(f"Serve it: {called} serve --store {out}/store")


def _print_table(title: str, columns: dict[str, str], rows: list[dict[str, Any]]) -> None:
    """A table of the columns named, by their headings."""
    found = table(*columns.values(), title=title)
    for row in rows:
        found.add_row(*(_cell(row.get(name)) for name in columns))
    print_table(found)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _days(log: Path) -> tuple[datetime, int]:
    """Midnight before the first request of a log, and the days that it spans."""
    import pyarrow.compute as pc

    times = _event_times(log)
    first, last = pc.min(times).as_py(), pc.max(times).as_py()
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight, (last - midnight).days + 1


def _event_times(log: Path) -> Any:
    from contracts.records import open_dataset

    return open_dataset(str(log / "requests")).to_table(["event_time"])["event_time"]


@contextmanager
def _replacing(out: Path) -> Iterator[None]:
    """An empty directory in place of an earlier demo, which comes back where the block fails."""
    earlier = out.with_name(f".{out.name}.earlier")
    if out.exists() and any(out.iterdir()):
        if not (out / DEMO_MARK).exists():
            raise InputError(f"--out {out}: holds something else than an earlier demo; choose another directory")
        shutil.rmtree(earlier, ignore_errors=True)
        out.rename(earlier)
    out.mkdir(parents=True, exist_ok=True)
    (out / DEMO_MARK).touch()
    try:
        yield
    except BaseException:
        shutil.rmtree(out)
        if earlier.exists():
            earlier.rename(out)
        raise
    shutil.rmtree(earlier, ignore_errors=True)
