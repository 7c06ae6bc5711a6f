"""Version skew: own pins are the plain evaluation, another version's are what the dot product makes of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from contracts import metrics as plain
from contracts.bundle import Bundle
from contracts.errors import WrongArtifactError
from contracts.probability import sigmoid
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from distill.cli import app
from distill.config import DistillConfig
from distill.evaluate import Evaluation, evaluate_bundles
from distill.publish import publish_student
from distill.recall import STUDENT
from distill.skew import METRICS, POOLS, SkewReport, measure_skew
from distill.skew_report import render_skew
from distill.slices import STAGE_SLICES
from distill.train import train_student
from modeling.examples import Examples
from towers.serving import TwoTowerServing

POOL_SIZE = 40


@pytest.fixture(scope="module")
def other(schema: FeatureSchema, log: LogPaths, config: DistillConfig, tmp_path_factory: Any) -> Bundle:
    """A student of another seed, as good as the first."""
    place = tmp_path_factory.mktemp("other")
    changed = msgspec.structs.replace(config, seed=2)
    return publish_student(train_student(schema, log, place / "run", changed, scenario="shopping"), log, place / "b")


@pytest.fixture(scope="module")
def report(bundle: Bundle, other: Bundle, log: LogPaths) -> SkewReport:
    return measure_skew(bundle, [other, bundle], log, pool_size=POOL_SIZE, threads=1)


@pytest.fixture(scope="module")
def evaluations(bundle: Bundle, other: Bundle, log: LogPaths) -> list[Evaluation]:
    return evaluate_bundles([bundle, other], [log], pool_size=POOL_SIZE, threads=1).evaluations


def test_own_pins_are_the_plain_evaluation(report: SkewReport, evaluations: list[Evaluation], bundle: Bundle) -> None:
    own = report.versions[0]
    assert report.query == own.version == bundle.manifest.version
    assert own.hours == 0.0
    compared = 0
    for figure in own.figures:
        if figure.stage == POOLS:
            assert evaluations[0].recall is not None
            expected = evaluations[0].recall.at(figure.head, STUDENT, 100)
        else:
            found = evaluations[0].metrics(figure.stage, figure.head)
            assert found is not None
            expected = getattr(found, figure.metric)
        compared += 1
        assert figure.value == figure.paired == expected
        assert figure.difference == 0.0
    assert compared == 3 * 2 * len(METRICS) + 3  # stages, heads; recall by utility and by each head


def test_other_pins_are_what_the_dot_product_makes_of_them(
    report: SkewReport, bundle: Bundle, other: Bundle, examples: Examples
) -> None:
    query = TwoTowerServing.load(bundle, threads=1).embed_query(examples.query)
    pins = TwoTowerServing.load(other, threads=1).embed_ads(examples.ad)
    pairs = zip(examples.request_row.tolist(), examples.ad_row.tolist(), strict=True)
    logits = np.array([[query[r, h] @ pins[a, h] for h in range(2)] for r, a in pairs], np.float64)
    swept = report.versions[1]
    for head, task in enumerate(report.tasks):
        for stage, least in STAGE_SLICES.items():
            rows = np.asarray(examples.stage) >= least
            teacher, student = np.asarray(examples.teacher[rows, head], np.float64), logits[rows, head]
            weight = np.asarray(examples.weight[rows], np.float64)
            expected = {
                "kl": plain.bernoulli_kl(teacher, student, weight),
                "log_mae": plain.log_mae(teacher, student, weight),
                "auc": plain.auc(sigmoid(teacher), student, weight),
                "calibration": plain.calibration_ratio(sigmoid(teacher), sigmoid(student), weight),
            }
            for metric, value in expected.items():
                figure = swept.figure(stage, task, metric)
                assert figure is not None
                assert figure.value == pytest.approx(value, rel=1e-4), (stage, task, metric)


def test_another_seeds_pins_break_a_student_that_is_as_good(report: SkewReport, evaluations: list[Evaluation]) -> None:
    for task in report.tasks:
        own, alone = (evaluation.metrics("eligible", task) for evaluation in evaluations)
        assert own is not None
        assert alone is not None
        assert alone.kl < 3 * own.kl
        assert abs(own.auc - alone.auc) < 0.01
        for metric, times in (("kl", 10), ("log_mae", 4)):
            figure = report.versions[1].figure("eligible", task, metric)
            assert figure is not None
            assert figure.value > times * figure.paired, (task, metric)
            assert figure.verdict == "worse"
        auc = report.versions[1].figure("eligible", task, "auc")
        assert auc is not None
        assert auc.high < 0


def test_pins_in_other_coordinates_are_random_but_for_their_biases(bundle: Bundle, examples: Examples) -> None:
    """Turned by any rotation a student scores the same; with unturned ones its vectors say nothing on average."""
    serving = TwoTowerServing.load(bundle, threads=1)
    query, pins = serving.embed_query(examples.query).astype(float), serving.embed_ads(examples.ad).astype(float)
    generator = np.random.default_rng(8)
    for head in range(2):
        q, p = query[:, head, :-2], pins[:, head, :-2]
        own, kept = _tastes(q @ p.T), []
        for _ in range(200):
            turn, upper = np.linalg.qr(generator.normal(size=(q.shape[1], q.shape[1])))
            turn *= np.sign(np.diag(upper))  # else not every rotation is as likely
            np.testing.assert_allclose((q @ turn) @ (p @ turn).T, q @ p.T, atol=1e-9)
            kept.append(np.corrcoef(own, _tastes(q @ (p @ turn).T))[0, 1])
        assert abs(np.mean(kept)) < 0.2


def _tastes(logits: np.ndarray) -> np.ndarray:
    """What is left of logits [R, A] without the level of each request and of each ad."""
    return (logits - logits.mean(0) - logits.mean(1, keepdims=True) + logits.mean()).ravel()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scenario": "standard"}, r"scenario is standard, expected shopping as of .*; versions of one student are"),
        ({"tasks": ["click"]}, r"tasks is \['click'\], expected \['click', 'conversion'\]"),
    ],
)
def test_versions_of_another_job_are_refused(
    change: dict[str, Any], message: str, altered: Callable[..., Bundle], bundle: Bundle, log: LogPaths
) -> None:
    with pytest.raises(WrongArtifactError, match=message):
        measure_skew(bundle, [altered(**change)], log)


def test_pins_of_another_width_cannot_even_be_scored(
    altered: Callable[..., Bundle], bundle: Bundle, log: LogPaths
) -> None:
    wide = altered(dims=bundle.manifest.dims | {"head_dim": 16})
    report = measure_skew(bundle, [wide], log, threads=1)
    assert report.versions[1].unscorable == "cannot even be scored: its head_dim is 16, the query's 8"
    assert report.versions[1].figures == []
    assert f"{wide.manifest.version} cannot even be scored" in render_skew(report)


def test_hours_lie_between_the_watermarks(altered: Callable[..., Bundle], bundle: Bundle, log: LogPaths) -> None:
    older = altered(watermark="2026-03-02T00:00:00+00:00")
    found = measure_skew(bundle, [older], log, threads=1).versions[1]
    own = np.datetime64(bundle.manifest.watermark.removesuffix("+00:00"))
    assert found.hours == pytest.approx((np.datetime64("2026-03-02") - own) / np.timedelta64(1, "h"), abs=0.01)
    assert found.hours < 0


def test_a_schema_that_reads_other_pairs_is_refused(
    bundle: Bundle, other: Bundle, log: LogPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distill import skew

    def fewer(schema: FeatureSchema, *args: Any, **kwargs: Any) -> Examples:
        found = plainly(schema, *args, **kwargs)
        return found.select(np.arange(len(found) - 5)) if schema is other.schema else found

    plainly = skew.read_scored
    monkeypatch.setattr(skew, "read_scored", fewer)
    with pytest.raises(
        WrongArtifactError, match=r"by its schema [\d,]+ pairs of the log can be read, by that of .* not the"
    ):
        measure_skew(bundle, [other], log, threads=1)


def test_the_command_writes_a_page_and_json(bundle: Bundle, other: Bundle, log_directory: Path, tmp_path: Path) -> None:
    command = ["skew", "--logs", log_directory, "--query", bundle.path, "--pins", other.path]
    command += ["--out", tmp_path / "skew", "--pool-size", POOL_SIZE, "--threads", 1]
    printed = CliRunner().invoke(app, [str(word) for word in command])
    assert printed.exit_code == 0, printed.output
    assert "surely worse than with the query's own pins" in printed.stdout
    written = json.loads((tmp_path / "skew" / "skew.json").read_text())
    assert [version["version"] for version in written["versions"]] == [
        bundle.manifest.version,
        other.manifest.version,
    ]
    page = (tmp_path / "skew" / "skew.html").read_text()
    assert page.count("<svg viewBox") >= 2
    assert f"1: {other.manifest.version}" in page
    assert "http" not in page.split("<body>")[1]


@pytest.fixture
def altered(bundle: Bundle) -> Callable[..., Bundle]:
    """The bundle as if its manifest said something else."""

    def alter(**changes: Any) -> Bundle:
        changes = {"version": "two_tower-shopping-aaaaaaaaaaaa", **changes}
        return replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, **changes))

    return alter
