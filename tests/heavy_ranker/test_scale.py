import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from contracts.errors import ArtifactError, ConfigError, InputError
from heavy_ranker.scale import run_study
from heavy_ranker.scale_grid import Cell, cell_config, cell_schema, cell_start, grid
from heavy_ranker.scale_report import write_report

UNTIL = datetime(2026, 3, 1, tzinfo=UTC)


def test_the_grid_is_full_and_grows():
    cells = grid(widths=[16, 8], layers=[1], embeddings=[1, 2], days=[2, 1], seeds=2)
    assert len(cells) == len(set(cells)) == 16
    assert cells[0] == Cell(width=8, layers=1, embedding=1, days=1.0, seed=0)
    assert cells[-1] == Cell(width=16, layers=1, embedding=2, days=2.0, seed=1)


@pytest.mark.parametrize("widths", [[], [8, 8], [0, 8]])
def test_a_grid_of_nothing_twice_or_zero_is_refused(widths):
    with pytest.raises(InputError, match="widths: expected different positive numbers up to 100,000, got"):
        grid(widths=widths, layers=[1], embeddings=[1], days=[1], seeds=1)


@pytest.mark.parametrize("days", [[float("nan")], [float("inf")], [1e9], [2.0, 2.0000001]])
def test_days_that_are_no_span_of_time_or_have_one_name_are_refused(days):
    with pytest.raises(InputError, match="days: expected different positive numbers"):
        grid(widths=[8], layers=[1], embeddings=[1], days=days, seeds=1)


def test_a_damaged_study_is_named(schema, log, config, tmp_path):
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"study\.json: not a file of a scaling study"):
        run_study(schema, log, tmp_path, config, [], until=UNTIL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 1000}, "num_layers: expected a whole number from 1 to 256, got 1000"),
        ({"width": 20_000}, "token_dim: expected a whole number from 1 to 16,384, got 20000"),
        ({"width": 9}, "must divide token_dim=9"),
        ({"embedding": 1000}, "expected 1..4096, got [48]000"),
        ({"width": 8_192, "layers": 256}, "GiB of memory are available"),
    ],
)
def test_sizes_of_the_last_cell_are_judged_before_the_first_is_trained(schema, log, config, tmp_path, changes, message):
    first = Cell(width=8, layers=1, embedding=1, days=1.0, seed=0)
    with pytest.raises(ConfigError, match=message):
        run_study(schema, log, tmp_path / "study", config, [first, replace(first, **changes)], until=UNTIL)
    assert not (tmp_path / "study").exists()


def test_hidden_widths_keep_their_ratio_to_the_token(config):
    model = cell_config(config, Cell(width=16, layers=2, embedding=1, days=1.0, seed=5)).model
    assert (model.token_dim, model.query_hidden_dim, model.expert_dim, model.head_dims) == (16, 12, 24, (20,))
    assert model.num_layers == 2


def test_embeddings_of_tables_and_ages_are_multiplied(schema):
    larger = cell_schema(schema, Cell(width=8, layers=1, embedding=3, days=1.0, seed=0))
    before = {name: table.dim for name, table in schema.all_tables().items()}
    assert {name: table.dim for name, table in larger.all_tables().items()} == {n: 3 * d for n, d in before.items()}


def test_days_count_back_from_the_test():
    cell = Cell(width=8, layers=1, embedding=1, days=1.5, seed=0)
    assert UNTIL - cell_start(cell, UNTIL) == timedelta(hours=36)


@pytest.fixture(scope="module")
def study(schema, log, config, tmp_path_factory):
    """Arguments of a study of four runs, and what it gave."""
    quick = msgspec.structs.replace(config, loop=msgspec.structs.replace(config.loop, epochs=1))
    cells = grid(widths=[8, 16], layers=[1], embeddings=[1], days=[8, 16], seeds=1)
    until = datetime(2026, 3, 20, tzinfo=UTC)
    arguments = (schema, log, tmp_path_factory.mktemp("study") / "out", quick, cells)
    return arguments, until, run_study(*arguments, until=until)


def test_every_cell_is_trained_on_its_days_and_tested_on_the_same(study):
    _, _, results = study
    rows = {(result.cell.width, result.cell.days): result.rows for result in results}
    assert rows[8, 8.0] == rows[16, 8.0] < rows[8, 16.0] == rows[16, 16.0]
    assert len({result.metrics["click"]["rows"] for result in results}) == 1
    flops = {result.cell.width: result.flops_per_ad for result in results}
    assert 2 * flops[8] < flops[16]


def test_a_second_call_trains_only_what_misses(study):
    arguments, until, results = study
    out, missing = arguments[2], results[1].cell.name
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("*.json") if path.stem != missing}
    (out / f"{missing}.json").unlink()
    again = run_study(*arguments, until=until)
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert [result.cell for result in again] == [result.cell for result in results]
    assert again[1].metrics["click"]["log_loss"] == pytest.approx(results[1].metrics["click"]["log_loss"])
    assert not [path for path in out.iterdir() if path.is_dir()]


def test_another_study_is_refused(study):
    arguments, until, _ = study
    with pytest.raises(InputError, match="holds a study of another schema, configuration or time"):
        run_study(*arguments, until=until - timedelta(days=1))


def test_the_report_has_effects_and_a_drawing(study):
    arguments, _, results = study
    out = arguments[2]
    report = write_report(results, out)
    assert json.loads((out / "report.json").read_bytes())["cells"] == json.loads(json.dumps(report["cells"]))
    assert report["interactions"]["click"].startswith("cannot be told: as many coefficients as runs")
    names = [row["effect"] for row in report["effects"]["click"]]
    assert names == ["log2 width", "log2 days", "log2 width x log2 days"]
    assert (out / "report.svg").read_text().lstrip().startswith("<?xml")
