"""The commands: what they print, write and refuse."""

import json
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from click.testing import Result
from typer.testing import CliRunner

from contracts.bundle import Bundle
from contracts.config import dump_yaml
from contracts.errors import ConfigError, InputError, MismatchError
from contracts.schema import FeatureSchema, save_schema
from distill.cli import app
from distill.cli_evaluate import _print_headline, _worse_line
from distill.cli_train import choose_config, parse_weights
from distill.compare import SliceDifference
from distill.config import DistillConfig
from distill.presets import PRESETS
from distill.run import Run, load_run


def _invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_train_publish_and_evaluate_in_turn(
    log_directory: Path, schema: FeatureSchema, config: DistillConfig, tmp_path: Path
) -> None:
    save_schema(schema, tmp_path / "towers.yaml")
    dump_yaml(config, tmp_path / "distill.yaml")
    logs = ("--logs", log_directory, "--candidates", log_directory / "candidates")
    period = ("--until", "2026-03-03")
    given = ("--schema", tmp_path / "towers.yaml", "--config", tmp_path / "distill.yaml", "--epochs", 3)
    weights = ("--head-weight", "conversion=2", "--stage-weight", "winner=1.5", "--propensity-weights")
    trained = _invoke(
        "train", *logs, *given, *weights, *period, "--scenario", "standard", "--out", tmp_path / "run", "--json"
    )
    assert trained.exit_code == 0, trained.output
    assert json.loads(trained.stdout)["summary"]["scenario"] == "standard"
    run = load_run(tmp_path / "run")
    assert run.config.loop.epochs == 3
    assert run.config.head_weights == {"conversion": 2.0}
    assert run.config.stage_weights == {"winner": 1.5}
    assert run.config.propensity_weights

    sealing = ("publish", *logs, *period, "--run", tmp_path / "run", "--out", tmp_path / "bundle")
    refused = _invoke(*sealing)
    assert str(refused.exception).startswith(
        "refused, nothing could be judged: 80 requests, min_requests 50; 960 pairs"
    )
    published = _invoke(*sealing, "--override", "a small log")
    assert published.exit_code == 0, published.output
    assert "sealed two_tower-standard-" in published.stdout

    window = ("--from", "2026-03-03", "--slice", "country", "--pool-size", 60, "--threads", 1)
    evaluated = _invoke("evaluate", *logs, *window, "--bundle", tmp_path / "bundle", "--out", tmp_path / "report")
    assert evaluated.exit_code == 0, evaluated.output
    assert "KL on winners, click" in evaluated.stdout
    (report,) = json.loads((tmp_path / "report" / "report.json").read_text())["evaluations"]
    assert report["first"].startswith("2026-03-03")
    assert report["recall"]["requests"] == 3
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.html", "report.json", "slices.parquet"}


def test_evaluate_prints_json(bundle: Bundle, log_directory: Path, tmp_path: Path) -> None:
    printed = _invoke(
        "evaluate",
        "--logs",
        log_directory,
        "--bundle",
        bundle.path,
        "--out",
        tmp_path / "report",
        "--threads",
        1,
        "--json",
    )
    assert json.loads(printed.stdout) == json.loads((tmp_path / "report" / "report.json").read_text())


def test_several_bundles_and_logs_are_judged_side_by_side(bundle: Bundle, log_directory: Path, tmp_path: Path) -> None:
    """A bundle beside itself on the same log twice: no figure differs."""
    twice = ("--logs", log_directory, "--logs", log_directory, "--bundle", bundle.path, "--bundle", bundle.path)
    printed = _invoke("evaluate", *twice, "--from", "2026-03-03", "--threads", 1, "--out", tmp_path / "report")
    assert printed.exit_code == 0, printed.output
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    version, figures = bundle.manifest.version, len(report["comparisons"][0]["rows"])
    assert printed.stdout.count(f"{version} against {version} on {log_directory}:") == 2
    assert f"Of {figures:,} metrics of slices and whole stages 0 are significantly better and 0 worse" in printed.stdout
    assert len(report["evaluations"]) == 4
    assert [comparison["against"] for comparison in report["comparisons"]] == [bundle.manifest.version] * 2
    assert {row["difference"] for row in report["comparisons"][0]["rows"]} == {0.0}
    lacking = _invoke("evaluate", *twice, "--candidates", log_directory / "candidates", "--out", tmp_path / "other")
    assert "--candidates: expected once for each of 2 logs, got 1" in str(lacking.exception)


def test_recall_that_says_nothing_is_no_figure(bundle: Bundle, log_directory: Path, tmp_path: Path) -> None:
    """Pools of this log have 60 ads at the most."""
    words = ("evaluate", "--logs", log_directory, "--bundle", bundle.path, "--threads", 1, "--out", tmp_path / "report")
    without, uncut = _invoke(*words).stdout, _invoke(*words, "--pool-size", 60).stdout
    assert (
        "no recall: the largest request has 60 scored eligible ads, so that nothing is cut at 100 survivors" in without
    )
    assert "whole_pools in the mapping" in without
    assert "heavy top" not in without
    assert uncut.count("nothing is cut") == 3
    assert "no recall at 100 survivors: pools of at most 60 ads" in uncut


def test_recall_on_smaller_pools_is_told(make_report: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = make_report.make_report().evaluations[0]
    smaller = msgspec.structs.replace(evaluation.recall, pool_size=(700, 720))
    told = "recall on pools of 700 to 720 scored eligible ads, since no request has 1,000: in larger ones it is lower"
    for recall, pool_size, is_told in ((smaller, None, True), (smaller, 700, False), (evaluation.recall, None, False)):
        _print_headline(msgspec.structs.replace(evaluation, recall=recall), pool_size)
        assert (told in capsys.readouterr().out) is is_told


def test_an_unknown_slice_is_refused_before_any_work(bundle: Bundle, log_directory: Path, tmp_path: Path) -> None:
    words = ("evaluate", "--logs", log_directory, "--bundle", bundle.path, "--out", tmp_path / "report")
    failed = _invoke(*words, "--slice", "country", "--slice", "nonsense")
    assert str(failed.exception) == "slice nonsense: no such column in requests/, ads/ or candidates/ of the log"
    assert "Embedding" not in failed.output
    assert list(tmp_path.iterdir()) == []


def test_what_got_worse_is_written_with_its_interval() -> None:
    row = SliceDifference(
        stage="winners",
        slice="day",
        value="2026-03-01",
        head="click",
        against="teacher",
        rows=1_000,
        requests=100,
        metric="auc",
        before=0.8221,
        after=0.778,
        difference=-0.0441,
        low=-0.081,
        high=-0.0203,
        worsening=0.25,
        verdict="worse",
    )
    where = "winners, day 2026-03-01: auc of click against teacher"
    assert _worse_line(row) == f"{where} 0.822 -> 0.778, worse by 0.044 [0.020, 0.081]"


def test_a_bundle_of_another_kind_is_refused(bundle: Bundle, log_directory: Path, tmp_path: Path) -> None:
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    assert manifest["kind"] == "two_tower"
    failed = _invoke(
        "evaluate", "--logs", log_directory, "--bundle", tmp_path, "--out", log_directory.parent / "report"
    )
    assert f"{tmp_path}: unfinished" in str(failed.exception)


def test_times_must_be_readable(log_directory: Path, run: Run, tmp_path: Path) -> None:
    failed = _invoke(
        "publish", "--logs", log_directory, "--run", run.path, "--out", tmp_path / "bundle", "--from", "yesterday"
    )
    assert failed.exit_code == 2
    assert "expected an ISO 8601 date or time" in failed.output


def test_a_run_that_does_not_exist_is_refused(log_directory: Path, tmp_path: Path) -> None:
    failed = _invoke("publish", "--logs", log_directory, "--run", tmp_path / "none", "--out", tmp_path / "bundle")
    assert isinstance(failed.exception, InputError)
    assert not isinstance(failed.exception, MismatchError)


@pytest.mark.parametrize(
    ("preset", "scenario", "expected"),
    [(None, "shopping", "shopping"), (None, "elsewhere", "standard"), ("shopping", "standard", "shopping")],
)
def test_preset_is_named_or_follows_the_scenario(preset: str | None, scenario: str, expected: str) -> None:
    assert choose_config(preset, None, (scenario,), {}) == PRESETS[expected]()


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(ConfigError, match="preset: expected one of standard, shopping, plain_mlp, .*, got 'huge'"):
        choose_config("huge", None, ("shopping",), {})


def test_options_change_single_values() -> None:
    changed = choose_config("standard", None, ("standard",), {"epochs": 2, "seed": 9})
    plain = PRESETS["standard"]()
    loop = msgspec.structs.replace(plain.loop, epochs=2)
    assert changed == msgspec.structs.replace(plain, loop=loop, seed=9)


def test_an_impossible_option_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"options: validation_share: expected a number .*below 1, got 1.5"):
        choose_config("standard", None, ("standard",), {"validation_share": 1.5})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": float("nan")}, "options: learning_rate: expected a number above 0 .*got NaN"),
        ({"table_learning_rate": -1.0}, "options: table_learning_rate: expected a number above 0 .*got -1.0"),
        (
            {"head_weights": {"click": float("inf")}},
            r"options: head_weights.click: expected .*got Infinity",
        ),
        ({"pairs_per_batch": 0}, "options: pairs_per_batch: expected .*got 0"),
        ({"seed": -5}, "options: seed: expected .*got -5"),
        ({"seed": 2**70}, "options: seed: "),
    ],
)
def test_a_number_out_of_range_is_refused_before_anything_is_written(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_config("standard", None, ("standard",), change)


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"stage_weights.winner: .*got -1.0"):
        choose_config("standard", None, ("standard",), {"stage_weights": {"winner": -1.0}})


def test_weights_are_parsed() -> None:
    assert parse_weights(["click=2", "conversion=.5"], "--head-weight") == {"click": 2.0, "conversion": 0.5}
    with pytest.raises(ConfigError, match="--head-weight: expected NAME=NUMBER, got 'click'"):
        parse_weights(["click"], "--head-weight")
