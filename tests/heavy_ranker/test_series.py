import shutil
import subprocess
import sys
from datetime import UTC, datetime

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from contracts.bundle import open_bundle
from contracts.config import dump_yaml
from contracts.errors import ArtifactError, ConfigError, InputError, MismatchError
from contracts.records import LogPaths, read_table
from contracts.schema import save_schema
from heavy_ranker.run import load_run
from heavy_ranker.score import score_log
from heavy_ranker.series import (
    SERIES_FILE,
    Member,
    SeriesManifest,
    Teacher,
    TeacherMember,
    bundle_teacher,
    folds_of,
    newest_run,
    read_series,
    series_teacher,
    series_version,
)
from heavy_ranker.series_train import train_daily, train_folds
from modeling.examples import encode_log
from modeling.warm_start import CHECKPOINTS

FIRST, SECOND, THIRD, FOURTH = (datetime(2026, 3, day, tzinfo=UTC) for day in range(1, 5))


@pytest.fixture(scope="module")
def short(config):
    return msgspec.structs.replace(config, loop=msgspec.structs.replace(config.loop, epochs=2))


@pytest.fixture(scope="module")
def daily(schema, log, short, tmp_path_factory):
    """Two days of training, so a model for the second day and one for what comes after."""
    out = tmp_path_factory.mktemp("series") / "daily"
    return out, train_daily(schema, log, out, short, end=THIRD)


@pytest.fixture(scope="module")
def folds(schema, log, short, tmp_path_factory):
    """Two folds of the requests of two days."""
    out = tmp_path_factory.mktemp("series") / "folds"
    return out, train_folds(schema, log, out, short, folds=2, fold_by="request_id", end=THIRD)


def test_a_daily_series_learns_each_day_before_the_one_it_scores(daily):
    _, manifest = daily
    rules = [(member.name, member.scores_from, member.scores_until) for member in manifest.members]
    assert rules == [("2026-03-02", SECOND, THIRD), ("2026-03-03", THIRD, None)]
    assert [member.impressions for member in manifest.members] == [24 * 3, 24 * 3]
    assert manifest.members[0].metrics["click"]["rows"] == 24 * 3
    assert manifest.members[1].metrics == {}


def test_a_days_model_goes_on_from_the_day_before(daily):
    out, _ = daily
    first, second = (load_run(out / "members" / day / "run") for day in ("2026-03-02", "2026-03-03"))
    assert first.summary.warm_start is None
    assert second.summary.warm_start.optimizer
    assert second.summary.warm_start.carried == second.summary.warm_start.total
    assert (len(first.summary.history), len(second.summary.history)) == (2, 1)
    assert second.summary.watermark == "2026-03-02T23:00:00+00:00"
    assert not (first.path / CHECKPOINTS).exists()


def test_each_row_is_scored_by_the_model_that_has_not_seen_it(daily, log, tmp_path):
    out, manifest = daily
    report = score_log(series_teacher(out), log, tmp_path / "series", end=FOURTH, threads=1)
    table = _rows_with_times(log, tmp_path / "series")
    unscored = table["time"] < SECOND
    assert np.array_equal(table["teacher_click"] != table["teacher_click"], unscored | (table["time"] >= FOURTH))
    assert (report.rows_no_member, report.rows_scored, report.rows_seen) == (24 * 4, 48 * 4, 0)
    for member, start, end in zip(manifest.members, (SECOND, THIRD), (THIRD, FOURTH), strict=True):
        alone = bundle_teacher(open_bundle(out / "members" / member.name / "bundle"))
        score_log(alone, log, tmp_path / member.name, start=start, end=end, threads=1)
        own = (table["time"] >= start) & (table["time"] < end)
        expected = _rows_with_times(log, tmp_path / member.name)["teacher_click"]
        np.testing.assert_allclose(table["teacher_click"][own], expected[own], atol=1e-5)
    assert set(table["teacher_version"][~unscored & (table["time"] < FOURTH)]) == {manifest.version}


def test_a_scored_series_is_read_as_one_teachers(daily, log, schema, tmp_path):
    out, manifest = daily
    score_log(series_teacher(out), log, tmp_path, end=FOURTH, threads=1)
    paths = LogPaths.under(log.requests.removesuffix("/requests"), candidates=tmp_path / "candidates")
    examples = encode_log(schema, paths, tmp_path / "examples", teacher=True, labels=False)
    assert (examples.teacher_version, len(examples)) == (manifest.version, 48 * 4)


def test_a_finished_series_again_trains_nothing(daily, schema, log, short):
    out, manifest = daily
    before = {path: path.stat().st_mtime_ns for path in out.rglob("members/**/*")}
    assert train_daily(schema, log, out, short, end=THIRD) == manifest
    assert {path: path.stat().st_mtime_ns for path in out.rglob("members/**/*")} == before


def test_a_series_of_another_configuration_is_refused(daily, schema, log, short):
    with pytest.raises(InputError, match="holds a run of another schema or configuration"):
        train_daily(schema, log, daily[0], msgspec.structs.replace(short, seed=8), end=THIRD)


def test_a_member_that_learned_something_else_is_refused(daily, schema, log, short):
    with pytest.raises(
        InputError, match=r"2026-03-02: learned 72 impressions, this call would learn 36; choose another"
    ):
        train_daily(schema, log, daily[0], short, end=datetime(2026, 3, 1, 12, tzinfo=UTC))


def test_a_training_of_another_window_that_was_not_sealed_is_refused(daily, schema, log, short, tmp_path):
    shutil.copytree(daily[0], tmp_path / "series")
    (tmp_path / "series" / "members" / "2026-03-02" / "member.json").unlink()
    with pytest.raises(InputError, match="learned 72 impressions, this call would learn 36"):
        train_daily(schema, log, tmp_path / "series", short, end=datetime(2026, 3, 1, 12, tzinfo=UTC))


@pytest.mark.slow
def test_a_fold_is_scored_by_the_model_of_the_others(folds, log, tmp_path):
    out, manifest = folds
    teacher = series_teacher(out)
    requests = read_table(log.requests)
    own = folds_of(requests["request_id"], 2)[:48]
    assert [member.impressions for member in manifest.members] == [3 * (own == 1).sum(), 3 * (own == 0).sum()]
    report = score_log(teacher, log, tmp_path / "series", end=THIRD, threads=1)
    assert (report.rows_scored, report.rows_seen, report.rows_no_member) == (48 * 4, 0, 0)
    scored = read_table(tmp_path / "series" / "candidates")["teacher_click"].to_numpy()[: 48 * 4]
    for member in manifest.members:
        alone = bundle_teacher(open_bundle(out / "members" / member.name / "bundle"))
        score_log(alone, log, tmp_path / member.name, end=THIRD, threads=1)
        expected = read_table(tmp_path / member.name / "candidates")["teacher_click"].to_numpy()[: 48 * 4]
        rows = np.repeat(own == member.fold, 4)
        np.testing.assert_allclose(scored[rows], expected[rows], atol=1e-5)


@pytest.mark.slow
def test_a_training_killed_at_any_moment_ends_in_the_same_series(daily, schema, log, short, tmp_path):
    """SIGKILL after 5, 10, 15, ... seconds until a call ends by itself."""
    save_schema(schema, tmp_path / "schema.yaml")
    dump_yaml(short, tmp_path / "config.yaml")
    command = [sys.executable, "-m", "adsieve", "heavy", "train", "--series", "daily", "--until", "2026-03-03"]
    command += ["--logs", log.requests.removesuffix("/requests"), "--out", str(tmp_path / "series")]
    command += ["--schema", str(tmp_path / "schema.yaml"), "--config", str(tmp_path / "config.yaml")]
    for attempt in range(1, 60):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert process.wait(timeout=attempt * 5) == 0
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert msgspec.json.encode(read_series(tmp_path / "series")) == msgspec.json.encode(daily[1])


def test_folds_of_a_key_depend_on_the_key_alone():
    keys = pa.array([f"user {number}" for number in range(1000)])
    found = folds_of(keys, 5)
    assert np.array_equal(folds_of(keys.take(pa.array(range(999, -1, -1))), 5), found[::-1])
    assert np.bincount(found, minlength=5).min() > 150
    assert np.array_equal(folds_of(pa.array([7, 8]), 5), folds_of(pa.array(["7", "8"]), 5))


def test_a_request_before_the_first_day_has_no_member(schema):
    members = (TeacherMember("a", start=10, end=20), TeacherMember("b", start=20))
    found = Teacher("series", schema, members).member_of(np.array([9, 10, 19, 20, 99]))
    assert found.tolist() == [-1, 0, 0, 1, 1]


def test_a_request_goes_to_the_member_of_its_fold(schema):
    keys = pa.chunked_array([[f"r-{number}" for number in range(40)]])
    members = tuple(TeacherMember("a", fold=fold) for fold in range(3))
    found = Teacher("series", schema, members, fold_by="request_id").member_of(np.zeros(40, np.int64), keys)
    assert found.tolist() == folds_of(keys, 3).tolist()
    assert set(found.tolist()) == {0, 1, 2}


def test_an_altered_series_is_refused(daily, tmp_path):
    out, manifest = daily
    text = (out / SERIES_FILE).read_text()
    (tmp_path / SERIES_FILE).write_text(text.replace(manifest.members[0].version, manifest.members[1].version))
    with pytest.raises(MismatchError, match=r"series\.json: says version series-daily-.*, its content gives"):
        read_series(tmp_path)


def test_an_unfinished_series_is_refused(tmp_path):
    with pytest.raises(
        ArtifactError, match=r"no finished series here \(no series\.json\); run `adsieve heavy train --series`"
    ):
        series_teacher(tmp_path)


def test_one_fold_is_refused(schema, log, short, tmp_path):
    with pytest.raises(ConfigError, match="folds: expected 2 or more, got 1"):
        train_folds(schema, log, tmp_path, short, folds=1)


def test_a_column_that_is_absent_is_refused(schema, log, short, tmp_path):
    with pytest.raises(InputError, match="column user is missing, expected what --fold-by names"):
        train_folds(schema, log, tmp_path, short, folds=2, fold_by="user", end=SECOND)


def test_the_command_trains_and_scores_with_a_series(invoke, daily, schema, log, short, tmp_path):
    out, manifest = daily
    save_schema(schema, tmp_path / "schema.yaml")
    dump_yaml(short, tmp_path / "config.yaml")
    logs = ("--logs", log.requests.removesuffix("/requests"))
    files = ("--schema", tmp_path / "schema.yaml", "--config", tmp_path / "config.yaml")
    trained = invoke("train", *logs, *files, "--out", out, "--series", "daily", "--until", "2026-03-03")
    assert f"{manifest.version}: 2 models in {out}" in trained.stdout
    scored = invoke("score", *logs, "--series", out, "--out", tmp_path / "scored", "--until", "2026-03-04")
    assert f"{manifest.version}: 192 of 2,400 rows have scores" in scored.stdout
    assert "96 rows have no scores: they are older than the first day" in scored.stderr


@pytest.mark.parametrize("words", [("--series", "weekly"), ("--series", "folds:1"), ("--series", "folds:")])
def test_a_series_that_is_neither_is_refused(invoke, log, tmp_path, words):
    logs = (
        "--logs",
        log.requests.removesuffix("/requests"),
        "--schema",
        tmp_path / "schema.yaml",
        "--out",
        tmp_path / "out",
    )
    result = invoke("train", *logs, *words)
    assert result.exit_code == 2
    assert "expected daily or folds:K" in result.stderr


def _rows_with_times(log, out):
    """Columns of the scored rows beside their requests' times, as arrays."""
    times = dict(
        zip(*(read_table(log.requests)[name].to_pylist() for name in ("request_id", "event_time")), strict=True)
    )
    table = read_table(out / "candidates")
    found = {name: np.array(table[name].to_pylist()) for name in ("teacher_version",)}
    found["teacher_click"] = np.asarray(table["teacher_click"], np.float64)
    return found | {"time": np.array([times[request_id] for request_id in table["request_id"].to_pylist()])}


def test_a_daily_series_is_judged_exported_and_continued_by_its_newest_model(invoke, daily, log, tmp_path):
    out, manifest = daily
    newest = out / "members" / manifest.members[-1].name / "run"
    logs, window = ("--logs", log.requests.removesuffix("/requests")), ("--from", "2026-03-03", "--until", "2026-03-04")
    found = [
        invoke("evaluate", *logs, "--run", path, *window, "--out", tmp_path / f"{number}.json")
        for number, path in enumerate((out, newest))
    ]
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()
    assert [str(newest) in result.stderr for result in found] == [True, False]
    assert newest_run(out) == newest
    assert newest_run(newest) == newest


def test_of_a_series_of_folds_one_model_is_to_be_named(tmp_path):
    members = [Member(name=f"fold-{fold}", version=f"heavy-{fold}", fold=fold, impressions=36) for fold in range(2)]
    described = {"kind": "folds", "fold_by": "request_id", "schema_fingerprint": "f", "config": {}, "members": members}
    manifest = SeriesManifest(version=series_version(**described), **described)
    (tmp_path / SERIES_FILE).write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(InputError, match=r"series of 2 folds.* name the run of one, such as .*fold-1/run"):
        newest_run(tmp_path)
