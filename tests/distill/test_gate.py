"""The launch gate: what it lets through, what it refuses and names, and what it puts on record."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import adsieve
from contracts.bundle import Bundle, open_bundle
from contracts.errors import ArtifactError, ConfigError, WrongArtifactError
from contracts.probability import sigmoid
from contracts.records import LogPaths
from distill.cli import app
from distill.cli_publish import make_gate
from distill.compare import compare
from distill.evaluate import Assessment, Evaluation, assess_bundle
from distill.gate import Gate, LaunchRefused, judge
from distill.gate_limits import Limits
from distill.gate_record import GateRecord
from distill.measures import measure_slices
from distill.publish import publish_student
from distill.recall import RecallCurve, RecallReport
from distill.run import Run
from distill.scoring import ScoredPairs
from distill.slices import SliceColumn

SMALL = Limits(min_rows=100, min_requests=10)
NEW = "2026-03-01T00:00:00+00:00"
REASON = "the shop's ads are back: agreed with the sales team"


@pytest.fixture(scope="module")
def broken(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The student's run as if its pin tower read every feature in the place of another."""
    directory = tmp_path_factory.mktemp("broken") / "run"
    shutil.copytree(run.path, directory)
    weights = load_file(directory / "weights.safetensors")
    stem = weights["pin_tower.stem.0.weight"]
    weights["pin_tower.stem.0.weight"] = stem[:, np.random.default_rng(3).permutation(stem.shape[1])].copy()
    save_file(weights, directory / "weights.safetensors")
    return directory


@pytest.fixture(scope="module")
def limits_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("limits") / "limits.yaml"
    path.write_text("min_rows: 100\nmin_requests: 10\n")
    return path


def _publish(run: Path, log: Path, out: Path, *options: object, serving: Path | None = None) -> Any:
    command = ["publish", "--logs", log, "--run", run, "--out", out, "--threads", 1, *options]
    return CliRunner().invoke(app, [str(word) for word in command], obj=lambda store, scenario: serving)


@pytest.fixture(scope="module")
def forced(broken: Path, bundle: Bundle, log_directory: Path, limits_file: Path, tmp_path_factory: Any) -> Any:
    """The damaged student sealed all the same, by the command, which asks what serves; and what it printed."""
    out = tmp_path_factory.mktemp("forced") / "bundle"
    options = ("--limits", limits_file, "--override", REASON)
    return out, _publish(broken, log_directory, out, *options, serving=bundle.path)


@pytest.fixture(scope="module")
def assessments(forced: Any, bundle: Bundle, log: LogPaths, tmp_path_factory: Any) -> tuple[Assessment, Assessment]:
    """The student and the damaged one."""
    cache = tmp_path_factory.mktemp("cache")
    first, second = (assess_bundle(one, log, threads=1, cache=cache) for one in (bundle, open_bundle(forced[0])))
    return first, second


def _record(bundle: Bundle) -> GateRecord:
    return msgspec.json.decode(bundle.file("gate.json").read_bytes(), type=GateRecord)


def _held(gate: Gate, after: Assessment, before: Assessment | None = None) -> GateRecord:
    comparison = None if before is None else compare(before, after)
    return judge(gate, after, comparison, trained_until=NEW, event_time=np.zeros(1, np.int64))


def test_an_equal_student_passes(run: Run, bundle: Bundle, log: LogPaths, tmp_path: Path) -> None:
    gate = Gate(limits=SMALL, against=bundle, override="never needed")
    publish_student(run, log, tmp_path / "bundle", threads=1, gate=gate)
    record = _record(open_bundle(tmp_path / "bundle"))
    assert record.passed
    assert record.failures == []
    assert record.override is None
    assert record.against == bundle.manifest.version
    assert record.figures > 50
    assert record.floors == 2 * 3 * 3  # heads, stages, limits that are set; no pool holds 1,000
    assert record.limits == SMALL
    assert (record.requests, record.pairs) == (120, len(pq.read_table(log.candidates)) // 2)


def test_a_damaged_student_is_refused_with_every_slice_named(
    broken: Path, forced: Any, bundle: Bundle, log_directory: Path, limits_file: Path, tmp_path: Path, door: Any
) -> None:
    words = ("--logs", log_directory, "--run", broken, "--out", tmp_path / "bundle", "--store", tmp_path / "store")
    code, message = door("publish", *words, "--against", bundle.path, "--limits", limits_file)
    assert code == 1
    assert message.startswith("error: refused, ")
    assert list(tmp_path.iterdir()) == []
    record = _record(open_bundle(forced[0]))
    assert record.failures
    for failure in record.failures:
        assert failure.line() in message


def test_failures_are_those_of_the_comparison(forced: Any, assessments: tuple[Assessment, Assessment]) -> None:
    failures = _record(open_bundle(forced[0])).failures
    whole = {(failure.stage, failure.metric) for failure in failures if failure.slice == "all"}
    assert whole >= {("winners", "kl"), ("candidates", "kl"), ("eligible", "kl"), ("eligible", "auc")}
    assert {failure.slice for failure in failures} >= {"objective", "day"}
    rows = {_name(row): row for row in compare(*assessments).rows}
    changes = [failure for failure in failures if failure.before is not None]
    assert changes
    for failure in changes:
        row = rows[_name(failure)]
        assert row.verdict == "worse"
        assert (row.before, row.after) == (failure.before, failure.after)
        assert failure.excess > failure.allowed == getattr(SMALL, failure.limit)


def _name(row: Any) -> tuple[str, ...]:
    return row.stage, row.slice, row.value, row.head, row.against, row.metric


def test_an_override_is_printed_and_kept_under_checksums(forced: Any, tmp_path: Path) -> None:
    out, printed = forced
    assert printed.exit_code == 0, printed.output
    assert "eligible: kl of click against teacher" in printed.stdout
    assert f"sealed all the same: {REASON}" in printed.stderr
    record = _record(open_bundle(out))
    assert not record.passed
    assert record.override is not None
    assert record.override.reason == REASON
    assert record.override.time.endswith("+00:00")
    shutil.copytree(out, tmp_path / "bundle")
    path = tmp_path / "bundle" / "gate.json"
    path.write_text(path.read_text().replace("sales", "seals"))
    with pytest.raises(ArtifactError, match=r"gate\.json: wrong checksum"):
        open_bundle(tmp_path / "bundle")


def test_floors_hold_where_nothing_serves(assessments: tuple[Assessment, Assessment]) -> None:
    good, bad = assessments
    floor = Gate(limits=Limits(min_rows=100, min_requests=10, max_kl=0.01, min_auc=0.55))
    record = _held(floor, good)
    assert (record.passed, record.against, record.figures, record.floors) == (True, None, 0, 2 * 3 * 4)
    with pytest.raises(LaunchRefused, match=r"eligible: kl of click against teacher is .*; max_kl allows 0\.01 \(\d"):
        _held(floor, bad)


def test_what_is_too_small_is_named_and_nothing_judged_is_refused(
    assessments: tuple[Assessment, Assessment], bundle: Bundle
) -> None:
    gate = Gate(limits=Limits(min_rows=100_000), against=bundle)
    with pytest.raises(
        LaunchRefused, match=r"^refused, nothing could be judged: 120 requests, min_requests 50; \d,\d+ p"
    ):
        _held(gate, assessments[0], assessments[0])
    record = _held(replace(gate, override=REASON), assessments[0], assessments[0])
    assert (record.passed, record.figures, record.floors, record.failures) == (False, 0, 0, [])
    assert record.override is not None
    evaluation = assessments[0].evaluation
    rows = {row.stage: row.rows for row in evaluation.slices if row.slice == "all"}
    assert record.skipped[:4] == [
        "recall (0 pools of 1,000 or more ads, the largest has 60)",
        *(f"stage {stage} ({rows[stage]:,} of 100,000 rows)" for stage in ("winners", "candidates", "eligible")),
    ]
    assert record.skipped[4].endswith("slices of fewer than 100,000 rows or 50 requests")
    assert record.lines()[0].startswith("launch gate: held to 0 minimum limits and to 0 figures of two_tower-shopping-")
    assert record.lines()[1] == f"  not judged: {', '.join(record.skipped)}"


def test_one_stage_that_counts_is_enough(assessments: tuple[Assessment, Assessment]) -> None:
    rows = {row.stage: row.rows for row in assessments[0].evaluation.slices if row.slice == "all"}
    record = _held(Gate(limits=Limits(min_rows=rows["eligible"])), assessments[0])
    assert (record.passed, record.floors) == (True, 2 * 3)
    assert record.lines()[0].startswith("launch gate: no serving student: held to 6 minimum limits, on 120 requests")
    assert [text.split(" (")[0] for text in record.skipped] == ["recall", "stage winners", "stage candidates"]


def test_requests_that_the_student_trained_on_are_warned_of(assessments: tuple[Assessment, Assessment]) -> None:
    texts = []
    for day in ("2026-02-28", "2026-03-02"):
        times = np.array(["2026-02-28", day], "datetime64[us]").astype(np.int64)
        record = judge(Gate(limits=SMALL), assessments[0], None, trained_until=NEW, event_time=times)
        texts.append("\n".join(record.lines()))
    assert "  warning: all of these requests are of days that this student trained on" in texts[0]
    assert "warning" not in texts[1]


def test_recall_counts_only_where_something_is_cut(assessments: tuple[Assessment, Assessment]) -> None:
    curve = RecallCurve(
        order="utility", ranking="student", recall=[0.2], utility_lost=[0.5], recall_low=[0.1], recall_high=[0.3]
    )
    found = []
    for requests, most in ((60, 1_200), (60, 100), (49, 1_200)):
        recall = RecallReport(requests=requests, pool_size=(90, most), top_k=10, survivors=[100], curves=[curve])
        evaluation = msgspec.structs.replace(assessments[0].evaluation, recall=recall)
        record = _held(
            Gate(limits=Limits(min_rows=100), override=REASON), replace(assessments[0], evaluation=evaluation)
        )
        found.append(([failure.limit for failure in record.failures], record.skipped[:1]))
    assert found == [
        (["min_recall"], []),
        ([], ["recall (nothing is cut: pools of at most 100 ads)"]),
        ([], ["recall (49 of 50 pools of 1,000 or more ads)"]),
    ]


def test_another_teachers_student_is_judged_by_this_log(
    run: Run, bundle: Bundle, log: LogPaths, tmp_path: Path
) -> None:
    table = pq.read_table(log.candidates)
    place = table.schema.get_field_index("teacher_version")
    pq.write_table(table.set_column(place, "teacher_version", pa.array(["t-2"] * len(table))), tmp_path / "c.parquet")
    learned = replace(run, summary=msgspec.structs.replace(run.summary, teacher_version="t-2"))
    other = replace(log, candidates=str(tmp_path / "c.parquet"))
    gate = Gate(limits=SMALL, against=bundle)
    record = _record(publish_student(learned, other, tmp_path / "bundle", threads=1, gate=gate))
    assert record.passed
    assert (record.against_teacher, record.teacher_version) == ("heavy-all-0123456789ab", "t-2")
    assert "learned from heavy-all-0123456789ab; both are judged by t-2" in record.lines()[1]


def test_what_serves_must_be_comparable(run: Run, bundle: Bundle, log: LogPaths, tmp_path: Path) -> None:
    def beside(**changes: Any) -> Gate:
        return Gate(against=replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, **changes)))

    with pytest.raises(WrongArtifactError, match=r"serves scenario standard, the student of .* shopping"):
        publish_student(run, log, tmp_path / "bundle", gate=beside(scenario="standard"))
    with pytest.raises(WrongArtifactError, match="has head lead, which the student .* lacks.*--against none"):
        publish_student(run, log, tmp_path / "bundle", gate=beside(tasks=["click", "conversion", "lead"]))


NUM_REQUESTS, ADS, VALUES = 400, 20, 8


def _assess(pairs: ScoredPairs, codes: np.ndarray) -> Assessment:
    cuts = {"city": SliceColumn(codes, tuple(f"c{code}" for code in range(VALUES)))}
    measured = measure_slices(pairs, cuts)
    evaluation = Evaluation(
        bundle="two_tower-standard-a",
        log="log",
        scenario="standard",
        teacher_version="t",
        trained_on="t",
        first="2026-03-01",
        last="2026-03-02",
        requests=NUM_REQUESTS,
        pairs=len(pairs),
        tasks=pairs.tasks,
        slices=[one.metrics for one in measured],
        reliability=[],
        recall=None,
    )
    return Assessment(evaluation, measured, None)


def _noisy(seed: int, scale: np.ndarray | float = 0.3) -> ScoredPairs:
    """One student of many: the same teacher and labels, noise of its own."""
    fixed, generator = np.random.default_rng(5), np.random.default_rng(100 + seed)
    count = NUM_REQUESTS * ADS
    teacher = fixed.normal(-1, 1, size=(count, 1))
    return ScoredPairs(
        tasks=("click",),
        request=np.repeat(np.arange(NUM_REQUESTS, dtype=np.int32), ADS),
        stage=np.full(count, 2, np.int8),
        teacher=teacher,
        student=teacher + np.reshape(scale, (-1, 1)) * generator.normal(size=(count, 1)),
        labels=(fixed.random((count, 1)) < sigmoid(teacher)).astype(np.float32),
        weight=np.ones(count),
        bid=np.ones(count),
        pays_for=np.zeros(count, np.int64),
    )


def _judge(before: Assessment, after: Assessment, **limits: Any) -> GateRecord:
    return _held(Gate(limits=Limits(min_rows=50, min_requests=50, **limits), override=REASON), after, before)


CITY = np.repeat(np.arange(NUM_REQUESTS) % VALUES, ADS)
STRICT = {"kl_rise": 0.0, "auc_fall": 0.0, "gauc_fall": 0.0, "calibration_off": 0.0}


def test_equally_good_students_pass_however_many_slices_are_judged() -> None:
    before = _assess(_noisy(0), CITY)
    worse = 0
    for seed in range(1, 6):
        after = _assess(_noisy(seed), CITY)
        worse += sum(row.verdict == "worse" for row in compare(before, after).rows)
        assert _judge(before, after, **STRICT).passed, seed
    assert worse > 10  # what plain 95 % intervals would have refused, one by one


def test_one_bad_slice_is_found_and_named_alone() -> None:
    before = _assess(_noisy(0), CITY)
    after = _assess(_noisy(1, np.where(CITY == 7, 1.5, 0.3)), CITY)
    failures = _judge(before, after, kl_rise=0.05).failures
    assert ("city", "c7", "kl") in {(failure.slice, failure.value, failure.metric) for failure in failures}
    assert {failure.value for failure in failures} <= {"c7", "all"}


def test_a_rise_within_the_limit_passes_though_it_is_sure() -> None:
    before, after = _assess(_noisy(0), CITY), _assess(_noisy(0, 0.31), CITY)  # the same noise, a little more of it
    whole = ("winners", "all", "kl")
    (rise,) = [row.worsening for row in compare(before, after).rows if (row.stage, row.slice, row.metric) == whole]
    assert 0.05 < rise < 0.08
    assert _judge(before, after, kl_rise=0.08).passed
    failed = _judge(before, after, kl_rise=0.05).failures
    assert "all" in {failure.slice for failure in failed}
    assert {failure.limit for failure in failed} == {"kl_rise"}


def test_predictions_that_are_no_numbers_are_never_sealed() -> None:
    pairs = _noisy(0)
    after = _assess(replace(pairs, student=np.where(np.arange(len(pairs))[:, None] == 9, np.nan, pairs.student)), CITY)
    with pytest.raises(LaunchRefused, match="KL of click on all pairs is undefined.*no override seals that"):
        _held(Gate(override=REASON), after)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kl_rise: -1", r"limits.yaml: kl_rise: expected a number from 0 to .* or null, got -1"),
        ("min_auc: 1.5", r"limits.yaml: min_auc: expected a number from 0 to 1 or null, got 1.5"),
        ("min_requests: 3", r"limits.yaml: min_requests: expected a whole number of 10 or more, got 3"),
        ("survivors: 101", r"limits.yaml: survivors: expected one of 10, 20, .*, got 101"),
        ("kl_raise: 0.1", r"limits.yaml: .*kl_raise"),
        ("auc_fall: much", r"limits.yaml: auc_fall: expected a number from 0 to 1 or null, got \"much\""),
    ],
)
def test_a_wrong_limit_is_named(text: str, message: str, run: Run, log_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(text)
    failed = _publish(run.path, log_directory, tmp_path / "bundle", "--limits", tmp_path / "limits.yaml")
    assert isinstance(failed.exception, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise failed.exception
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("reason", [" ", "agreed\nlaunch gate: passed", "\x1b[2Jagreed", "y" * 501])
def test_an_override_needs_a_reason_of_one_line(
    reason: str, run: Run, log_directory: Path, tmp_path: Path, door: Any
) -> None:
    words = ("--logs", log_directory, "--run", run.path, "--out", tmp_path / "bundle", "--override", reason)
    message = "error: --override: expected a reason of one line and at most 500 printable characters\n"
    message += "next: `adsieve distill publish --help` tells what it takes\n"
    assert door("publish", *words) == (2, message)
    assert list(tmp_path.iterdir()) == []


def test_none_leaves_the_floors(bundle: Bundle) -> None:
    assert make_gate("none", bundle.path, None, None) == Gate()
    found = make_gate(None, bundle.path, None, None).against
    assert found is not None
    assert found.manifest == bundle.manifest


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Exit code and standard error of `adsieve distill ...`, through the front door."""

    def run(*words: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["adsieve", "distill", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            adsieve.main()
        message = capsys.readouterr().err
        return int(stopped.value.code or 0), message[max(message.find("error: "), 0) :]

    return run
