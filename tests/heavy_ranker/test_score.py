import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from contracts.errors import AdsieveError, InputError, LogError
from contracts.records import TEACHER_SAW_NONE, TEACHER_SEEN_UNTIL, LogPaths, read_table
from heavy_ranker import score_workers
from heavy_ranker.data import read_impressions
from heavy_ranker.evaluate import predict
from heavy_ranker.score import score_log
from heavy_ranker.score_parts import plan_parts
from heavy_ranker.score_rows import whole_requests
from heavy_ranker.series import bundle_teacher
from modeling.examples import encode_log


@pytest.fixture(scope="module")
def teacher(bundle):
    return bundle_teacher(bundle)


@pytest.fixture(scope="module")
def scored(teacher, log, tmp_path_factory):
    out = tmp_path_factory.mktemp("scored")
    return out, score_log(teacher, log, out, threads=1)


def test_the_scored_copy_keeps_every_row_and_column(scored, log):
    out, report = scored
    before, after = read_table(log.candidates), read_table(out / "candidates")
    assert after.select(before.schema.names).equals(before)
    added = {"teacher_click", "teacher_conversion", "teacher_deep_conversion", "teacher_version"}
    assert set(after.schema.names) - set(before.schema.names) == added
    assert (report.parts_written, report.parts_kept, report.rows) == (3, 0, len(before))


def test_scores_are_the_trained_models_logits(scored, log, run):
    out, _ = scored
    impressions = read_impressions(run.schema, log, run.path / "examples")
    table = read_table(out / "candidates").take(impressions.positions["candidates"])
    for index, task in enumerate(run.schema.tasks):
        expected = predict(run.model, impressions)[:, index]
        np.testing.assert_allclose(np.asarray(table[f"teacher_{task}"]), expected, atol=1e-4)


def test_an_ad_unknown_at_the_time_keeps_null_scores(scored):
    out, report = scored
    table = read_table(out / "candidates")
    late = [ad_id == "ad-late" for ad_id in table["ad_id"].to_pylist()]
    assert [value is None for value in table["teacher_click"].to_pylist()] == late
    assert [value is None for value in table["teacher_version"].to_pylist()] == late
    assert (report.rows_scored, report.rows_no_ad) == (report.rows - 1, 1)


def test_a_scored_log_is_read_as_one_teachers(scored, log, bundle, schema, tmp_path):
    out, report = scored
    paths = LogPaths.under(log.requests.removesuffix("/requests"), candidates=out / "candidates")
    examples = encode_log(schema, paths, tmp_path, teacher=True, labels=False)
    assert examples.teacher_version == report.teacher_version == bundle.manifest.version
    assert len(examples) == report.rows_scored


def test_an_interrupted_call_goes_on_with_the_missing_parts(scored, teacher, log, tmp_path):
    out, _ = scored
    parts = sorted((out / "candidates").glob("*.parquet"))
    (tmp_path / "candidates").mkdir()
    (tmp_path / "candidates" / parts[1].name).write_bytes(parts[1].read_bytes())
    (tmp_path / "candidates" / f".{parts[2].name}.partial").write_bytes(b"half")
    report = score_log(teacher, log, tmp_path, threads=1)
    assert (report.parts_written, report.parts_kept) == (2, 1)
    for part in parts:
        assert pq.read_table(tmp_path / "candidates" / part.name).equals(pq.read_table(part))
    assert {path.name for path in (tmp_path / "candidates").iterdir()} == {part.name for part in parts}


def test_a_finished_call_again_writes_nothing(scored, teacher, log):
    out, _ = scored
    report = score_log(teacher, log, out, threads=1)
    assert (report.parts_written, report.parts_kept, report.rows) == (0, 3, 2400)
    assert report.rows_scored == scored[1].rows_scored


def test_a_window_leaves_the_rest_unscored(scored, teacher, log, tmp_path):
    out, _ = scored
    requests = read_table(log.requests)
    middle = requests["event_time"][300].as_py()
    report = score_log(teacher, log, tmp_path, start=middle, threads=1)
    table, full = read_table(tmp_path / "candidates"), read_table(out / "candidates")
    inside = np.array([request_id >= "r-0300" for request_id in table["request_id"].to_pylist()])
    logits, all_logits = (np.asarray(each["teacher_click"], np.float64) for each in (table, full))
    assert np.isnan(logits[~inside]).all()
    np.testing.assert_allclose(logits[inside], all_logits[inside], atol=1e-4)
    assert (report.rows_scored, report.rows_outside) == (inside.sum() - 1, (~inside).sum())


def test_parts_of_another_window_are_refused(scored, teacher, log):
    out, _ = scored
    end = read_table(log.requests)["event_time"][300].as_py()
    with pytest.raises(
        InputError, match=r"00000-part-0\.parquet: was scored by .* from None to None, .* choose another"
    ):
        score_log(teacher, log, out, end=end, threads=1)


def test_parts_of_another_source_of_as_many_rows_are_refused(scored, teacher, log, tmp_path):
    out, _ = scored
    for part in sorted(Path(log.candidates).glob("*.parquet")):
        table = pq.read_table(part)
        pq.write_table(table.take(list(reversed(range(len(table))))), tmp_path / part.name)
    with pytest.raises(InputError, match=r"00000-part-0\.parquet: was scored by .* rows with sha256 .* choose another"):
        score_log(teacher, replace(log, candidates=str(tmp_path)), out, threads=1)


def test_parts_that_no_source_explains_are_refused(teacher, log, tmp_path):
    (tmp_path / "candidates").mkdir()
    (tmp_path / "candidates" / "other.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"holds other\.parquet, which no source file explains"):
        score_log(teacher, log, tmp_path, threads=1)


def test_whole_requests_cover_all_rows_and_divide_none():
    rows = np.repeat(np.arange(50), np.random.default_rng(1).integers(1, 9, 50))
    pieces = list(whole_requests(rows, 10))
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].stop) == (0, len(rows))
    for piece in pieces[:-1]:
        assert rows[piece.stop - 1] != rows[piece.stop]
        assert piece.stop - piece.start >= 10


def test_no_rows_are_no_pieces():
    assert list(whole_requests(np.zeros(0, np.int32), 10)) == []


def test_rows_not_later_than_the_training_data_are_counted(scored):
    """The bundle learned from all of the log, so it may have seen every row that it scores."""
    assert scored[1].rows_seen == scored[1].rows_scored


def test_a_series_says_that_it_has_seen_nothing(teacher, log, tmp_path):
    score_log(replace(teacher, seen_until=None), log, tmp_path, threads=1)
    for part in (tmp_path / "candidates").glob("*.parquet"):
        assert int(pq.read_metadata(part).metadata[TEACHER_SEEN_UNTIL]) == TEACHER_SAW_NONE


def test_only_requests_up_to_the_watermark_count_as_seen(teacher, log, tmp_path):
    times = read_table(log.requests)["event_time"]
    early = replace(teacher, seen_until=times.cast("int64")[99].as_py())
    assert score_log(early, log, tmp_path, threads=1).rows_seen == 100 * 4
    for part in (tmp_path / "candidates").glob("*.parquet"):
        assert int(pq.read_metadata(part).metadata[TEACHER_SEEN_UNTIL]) == early.seen_until


def test_several_processes_write_the_same_files(scored, teacher, log, tmp_path):
    out, report = scored
    again = score_log(teacher, log, tmp_path, threads=1, workers=2)
    assert again == report
    for part in sorted((out / "candidates").glob("*.parquet")):
        assert (tmp_path / "candidates" / part.name).read_bytes() == part.read_bytes()


def test_a_file_is_divided_between_row_groups(scored, teacher, log, tmp_path):
    whole = read_table(log.candidates)
    (tmp_path / "log").mkdir()
    pq.write_table(whole, tmp_path / "log" / "all.parquet", row_group_size=500)
    paths = replace(log, candidates=str(tmp_path / "log"))
    parts = plan_parts(paths, tmp_path, "call", rows_per_part=1000)
    assert [(part.row_groups, part.rows) for part in parts] == [((0, 1), 1000), ((2, 3), 1000), ((4,), 400)]
    score_log(teacher, paths, tmp_path, threads=1)
    expected, found = read_table(scored[0] / "candidates"), read_table(tmp_path / "candidates")
    assert found.drop_columns(["teacher_click", "teacher_conversion", "teacher_deep_conversion"]).equals(
        expected.drop_columns(["teacher_click", "teacher_conversion", "teacher_deep_conversion"])
    )
    logits, all_logits = (np.asarray(each["teacher_click"], np.float64) for each in (found, expected))
    np.testing.assert_allclose(logits, all_logits, atol=1e-4)


def test_what_is_wrong_with_the_log_comes_out_of_a_worker(teacher, log, tmp_path):
    (tmp_path / "log").mkdir()
    for part in sorted(Path(log.candidates).glob("*.parquet")):
        pq.write_table(pq.read_table(part).drop_columns(["seen"]), tmp_path / "log" / part.name)
    with pytest.raises(InputError, match="column 'seen' is missing, expected for side 'pair'"):
        score_log(teacher, replace(log, candidates=str(tmp_path / "log")), tmp_path, threads=1, workers=2)


def test_a_request_that_comes_twice_is_refused(teacher, log, tmp_path):
    (tmp_path / "requests").mkdir()
    for part in ("a", "b"):
        table = pq.read_table(sorted(Path(log.requests).glob("*.parquet"))[0])
        pq.write_table(table, tmp_path / "requests" / f"{part}.parquet")
    with pytest.raises(LogError, match="rows 0 and 300 of the window have the same request_id|the same request_id"):
        score_log(teacher, replace(log, requests=str(tmp_path / "requests")), tmp_path, threads=1)


def test_a_window_without_requests_is_refused(teacher, log, tmp_path):
    with pytest.raises(LogError, match="no request is in the window"):
        score_log(teacher, log, tmp_path, start=datetime(2030, 1, 1, tzinfo=UTC), threads=1)


def test_a_worker_that_dies_costs_its_part_alone(scored, teacher, log, tmp_path, monkeypatch):
    """One of two processes is killed as it begins; the other finishes two parts, and the next call the third."""
    started = []

    def start_and_kill_the_first(job, start=score_workers._start):
        process = start(job)
        if not started:
            process.kill()
            process.wait()
        started.append(process)
        return process

    monkeypatch.setattr(score_workers, "_start", start_and_kill_the_first)
    with pytest.raises(AdsieveError, match=r"the worker that scored .* ended by signal 9; the other parts are kept"):
        score_log(teacher, log, tmp_path, threads=1, workers=2)
    assert len(list((tmp_path / "candidates").glob("*.parquet"))) == 2
    monkeypatch.undo()
    report = score_log(teacher, log, tmp_path, threads=1, workers=2)
    assert (report.parts_written, report.parts_kept) == (1, 2)
    for part in sorted((scored[0] / "candidates").glob("*.parquet")):
        assert (tmp_path / "candidates" / part.name).read_bytes() == part.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_calls_killed_at_any_moment_end_in_the_same_files(scored, bundle, log, tmp_path, workers):
    """SIGKILL after 0.5, 1, 1.5, ... seconds until a call ends by itself; its workers end with it."""
    command = [sys.executable, "-m", "adsieve", "heavy", "score", "--logs", str(Path(log.requests).parent)]
    command += ["--bundle", str(bundle.path), "--out", str(tmp_path), "--threads", "1", "--workers", str(workers)]
    for attempt in range(1, 60):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            assert process.wait(timeout=attempt * 0.5) == 0
            break
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(0.2)
    written = {path.name for path in (tmp_path / "candidates").iterdir()}
    assert written == {path.name for path in (scored[0] / "candidates").iterdir()}
    for part in sorted((scored[0] / "candidates").glob("*.parquet")):
        assert (tmp_path / "candidates" / part.name).read_bytes() == part.read_bytes()
