import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from contracts.config import dump_yaml
from contracts.errors import ConfigError, InputError
from contracts.schema import save_schema
from heavy_ranker.cli import app, choose_config
from heavy_ranker.cli_metrics import print_metrics
from heavy_ranker.evaluate import task_metrics
from heavy_ranker.presets import iqiyi, small


@pytest.fixture
def log_directory(log):
    return Path(log.requests).parent


@pytest.fixture
def config_file(config, tmp_path):
    dump_yaml(config, tmp_path / "config.yaml")
    return tmp_path / "config.yaml"


def test_train_then_evaluate(invoke, schema, config_file, log_directory, tmp_path):
    save_schema(schema, tmp_path / "schema.yaml")
    options = ("--schema", tmp_path / "schema.yaml", "--config", config_file, "--epochs", 1, "--until", "2026-03-15")
    trained = invoke("train", "--logs", log_directory, "--out", tmp_path / "run", *options, "--json")
    found = json.loads(trained.stdout)
    assert found["watermark"] == "2026-03-14T23:00:00+00:00"
    assert found["validation"]["click"]["rows"] + found["impressions"] == 14 * 24 * 3

    window = ("--from", "2026-03-15", "--until", "2026-03-16T00:00:00+00:00")
    evaluated = invoke(
        "evaluate", "--logs", log_directory, "--run", tmp_path / "run", *window, "--out", tmp_path / "e.json"
    )
    saved = json.loads((tmp_path / "e.json").read_text())
    assert saved["rows"] == 24 * 3
    assert "shopping" in evaluated.stdout
    assert f"{saved['slices']['all']['model']['click']['auc']:.4f}" in evaluated.stdout


def test_score_with_a_sealed_bundle(invoke, bundle, log_directory, tmp_path):
    result = invoke("score", "--logs", log_directory, "--bundle", bundle.path, "--out", tmp_path, "--json")
    assert json.loads(result.stdout) == {
        "teacher_version": bundle.manifest.version,
        "parts_written": 3,
        "parts_kept": 0,
        "rows": 2400,
        "rows_scored": 2399,
        "rows_seen": 2399,
        "rows_outside": 0,
        "rows_no_ad": 1,
        "rows_no_member": 0,
    }
    assert "warning: 2,399 of the 2,399 rows with scores are not later than the data" in result.stderr


@pytest.mark.parametrize("teachers", [0, 2])
def test_score_wants_one_teacher(invoke, log_directory, tmp_path, teachers):
    for name in ("bundle", "series"):
        (tmp_path / name).mkdir()
    options = [("--bundle", tmp_path / "bundle"), ("--series", tmp_path / "series")][:teachers]
    result = invoke(
        "score", "--logs", log_directory, "--out", tmp_path / "out", *(word for pair in options for word in pair)
    )
    assert result.exit_code == 2
    assert "expected exactly one" in result.stderr


def test_single_options_win_over_the_file(config_file, config):
    changed = choose_config(None, config_file, {"epochs": 9, "batch_size": 7})
    assert (changed.loop.epochs, changed.batch_size) == (9, 7)
    assert changed.model == config.model


def test_a_preset_is_taken_without_a_file():
    assert choose_config("small", None, {}) == small()
    assert choose_config("iqiyi", None, {"num_layers": 2}) == iqiyi(num_layers=2)


def test_options_reach_model_and_loop():
    changed = choose_config("small", None, {"backbones": ["hyformer", "din_dcn"], "tensorboard": True, "seed": 5})
    assert changed.model.backbones == ("hyformer", "din_dcn")
    assert (changed.loop.tensorboard, changed.seed) == (True, 5)
    with pytest.raises(ConfigError, match="backbones"):
        choose_config("small", None, {"backbones": ["transformer"]})


def test_an_unknown_preset_is_refused():
    with pytest.raises(ConfigError, match="preset: expected one of small, medium, iqiyi, got 'huge'"):
        choose_config("huge", None, {})


@pytest.mark.parametrize("arguments", [("train", "--until", "yesterday"), ("evaluate", "--unknown", "1"), ("score",)])
def test_wrong_usage_exits_with_2(invoke, arguments):
    assert invoke(*arguments).exit_code == 2


def test_metrics_without_positives_are_dashes_with_the_reason(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    labels = np.array([[0.0, 1.0, np.nan], [0.0, 0.0, np.nan]])
    found = task_metrics(("click", "order", "return"), np.zeros((2, 3)), labels, np.ones(2))
    print_metrics({"validation": {"model": found}})
    click, order, returned = capsys.readouterr().out.strip().splitlines()[2:]
    assert " ".join(click.split()[3:]) == "2 0.6931 - - - no positives among 2 rows"
    assert " ".join(order.split()[3:]) == "2 0.6931 1.0000 0.5000 1.000 no better than always predicting the mean"
    assert " ".join(returned.split()[3:]) == "0 - - - - no row has a label"
    good = task_metrics(("click",), np.array([[-3.0], [3.0]]), np.array([[0.0], [1.0]]), np.ones(2))
    print_metrics({"validation": {"model": good}})
    assert "no better" not in capsys.readouterr().out


def test_a_missing_source_of_a_warm_start_is_told_before_anything_is_read(invoke, schema, log_directory, tmp_path):
    save_schema(schema, tmp_path / "schema.yaml")
    given = ("--logs", log_directory, "--schema", tmp_path / "schema.yaml", "--out", tmp_path / "run")
    with pytest.raises(InputError, match=f"^no run or bundle at {re.escape(str(tmp_path / 'none'))}$"):
        invoke("train", *given, "--warm-start", tmp_path / "none")
    assert not (tmp_path / "run").exists()


def test_a_training_of_few_steps_is_warned_of(invoke, schema, config_file, log_directory, tmp_path):
    save_schema(schema, tmp_path / "schema.yaml")
    given = ("--logs", log_directory, "--schema", tmp_path / "schema.yaml", "--config", config_file)
    found = invoke("train", *given, "--epochs", 1, "--batch-size", 100_000, "--out", tmp_path / "run")
    assert found.stderr.count("warning: 1 step only: lower --batch-size or raise --epochs\n") == 1


@pytest.mark.parametrize("option", ["epochs", "batch_size", "learning_rate", "table_learning_rate", "validation_share"])
def test_the_help_tells_the_value_of_the_default_preset(option):
    config = small()
    value = getattr(config if hasattr(config, option) else config.loop, option)
    text = next(found.help for found in get_command(app).commands["train"].params if found.name == option)
    assert f"of small {value:g}" in text
