from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from contracts.errors import InputError
from contracts.records import LogPaths, read_table
from heavy_ranker.data import read_impressions
from heavy_ranker.evaluate import predict
from heavy_ranker.score import score_log, whole_requests
from modeling.examples import encode_log


@pytest.fixture(scope="module")
def scored(bundle, log, tmp_path_factory):
    out = tmp_path_factory.mktemp("scored")
    return out, score_log(bundle, log, out, threads=1)


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
    assert report.rows_scored == report.rows - 1


def test_a_scored_log_is_read_as_one_teachers(scored, log, bundle, schema, tmp_path):
    out, report = scored
    paths = LogPaths.under(log.requests.removesuffix("/requests"), candidates=out / "candidates")
    examples = encode_log(schema, paths, tmp_path, teacher=True, labels=False)
    assert examples.teacher_version == report.teacher_version == bundle.manifest.version
    assert len(examples) == report.rows_scored


def test_an_interrupted_call_goes_on_with_the_missing_parts(scored, bundle, log, tmp_path):
    out, _ = scored
    parts = sorted((out / "candidates").glob("*.parquet"))
    (tmp_path / "candidates").mkdir()
    (tmp_path / "candidates" / parts[1].name).write_bytes(parts[1].read_bytes())
    (tmp_path / "candidates" / f".{parts[2].name}.partial").write_bytes(b"half")
    report = score_log(bundle, log, tmp_path, threads=1)
    assert (report.parts_written, report.parts_kept) == (2, 1)
    for part in parts:
        assert pq.read_table(tmp_path / "candidates" / part.name).equals(pq.read_table(part))
    assert {path.name for path in (tmp_path / "candidates").iterdir()} == {part.name for part in parts}


def test_a_finished_call_again_writes_nothing(scored, bundle, log):
    out, _ = scored
    report = score_log(bundle, log, out, threads=1)
    assert (report.parts_written, report.parts_kept, report.rows) == (0, 3, 0)


def test_a_window_leaves_the_rest_unscored(scored, bundle, log, tmp_path):
    out, _ = scored
    requests = read_table(log.requests)
    middle = requests["event_time"][300].as_py()
    report = score_log(bundle, log, tmp_path, start=middle, threads=1)
    table, full = read_table(tmp_path / "candidates"), read_table(out / "candidates")
    inside = np.array([request_id >= "r-0300" for request_id in table["request_id"].to_pylist()])
    logits, all_logits = (np.asarray(each["teacher_click"], np.float64) for each in (table, full))
    assert np.isnan(logits[~inside]).all()
    np.testing.assert_allclose(logits[inside], all_logits[inside], atol=1e-4)
    assert report.rows_scored == inside.sum() - 1


def test_parts_of_another_window_are_refused(scored, bundle, log):
    out, _ = scored
    end = read_table(log.requests)["event_time"][300].as_py()
    with pytest.raises(
        InputError, match=r"00000-part-0\.parquet: was scored by .* from None to None, .* choose another"
    ):
        score_log(bundle, log, out, end=end, threads=1)


def test_parts_of_another_source_of_as_many_rows_are_refused(scored, bundle, log, tmp_path):
    out, _ = scored
    for part in sorted(Path(log.candidates).glob("*.parquet")):
        table = pq.read_table(part)
        pq.write_table(table.take(list(reversed(range(len(table))))), tmp_path / part.name)
    with pytest.raises(InputError, match=r"00000-part-0\.parquet: was scored by .* rows with sha256 .* choose another"):
        score_log(bundle, replace(log, candidates=str(tmp_path)), out, threads=1)


def test_parts_that_no_source_explains_are_refused(bundle, log, tmp_path):
    (tmp_path / "candidates").mkdir()
    (tmp_path / "candidates" / "other.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"holds other\.parquet, which no source file explains"):
        score_log(bundle, log, tmp_path, threads=1)


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
