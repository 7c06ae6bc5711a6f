"""What ``adsieve distill train`` begins from, says of it, and refuses."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from typer.main import get_command
from typer.testing import CliRunner

from contracts.bundle import Bundle
from contracts.config import dump_yaml
from contracts.errors import ConfigError, InputError
from contracts.schema import FeatureSchema, save_schema
from distill.cli import app
from distill.cli_train import choose_config
from distill.config import DistillConfig
from distill.presets import PRESETS
from distill.run import load_run

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(log_directory: Path, schema: FeatureSchema, config: DistillConfig, tmp_path: Path) -> Invoke:
    """A short training; ``serving`` is what the front door finds in a store."""
    save_schema(schema, tmp_path / "towers.yaml")
    dump_yaml(config, tmp_path / "distill.yaml")

    def run(*words: object, serving: Callable | None = None, sizes: Path = tmp_path / "distill.yaml") -> Result:
        given = ("--logs", log_directory, "--schema", tmp_path / "towers.yaml", "--config", sizes, "--epochs", 2)
        command = ("train", *given, *words)
        if "--scenario" not in words:
            command += ("--scenario", "shopping")
        return CliRunner().invoke(app, [str(word) for word in command], obj=serving)

    return run


@pytest.fixture
def other_sizes(config: DistillConfig, tmp_path: Path) -> Path:
    towers = msgspec.structs.replace(config.towers, head_dim=4)
    dump_yaml(msgspec.structs.replace(config, towers=towers), tmp_path / "other.yaml")
    return tmp_path / "other.yaml"


def test_by_default_a_run_begins_from_what_serves(invoke: Invoke, bundle: Bundle, tmp_path: Path) -> None:
    asked = []

    def serving(store: str, scenario: str) -> Path:
        asked.append((store, scenario))
        return bundle.path

    found = invoke("--out", tmp_path / "run", "--store", tmp_path / "releases", serving=serving)
    assert found.exit_code == 0, found.output
    assert asked == [(str(tmp_path / "releases"), "shopping")]
    assert f"warm start from {bundle.path} ({bundle.manifest.version}): " in found.stderr
    assert found.stderr.index("warm start from") < found.stderr.index("Distilling the student")
    report = load_run(tmp_path / "run").summary.warm_start
    assert report.carried == report.total

    again = invoke("--out", tmp_path / "run", "--json", serving=lambda store, scenario: tmp_path / "another")
    assert again.exit_code == 0, again.output  # what serves by then does not matter
    assert json.loads(again.stdout)["summary"]["warm_start"]["source"] == report.source


def test_nothing_that_serves_means_fresh_weights_and_is_said_once(invoke: Invoke, tmp_path: Path) -> None:
    given = ("--out", tmp_path / "run", "--json", "--store", "redis://me:secret@host:1/0")
    found = invoke(*given, serving=lambda store, scenario: None)
    assert found.exit_code == 0, found.output
    told = " ".join(found.stderr.split())
    expected = "nothing serves shopping in the store redis://host:1/0 (--store): beginning with fresh weights"
    assert told.count(expected) == 1
    assert "secret" not in told
    assert json.loads(found.stdout)["summary"]["warm_start"] is None


def test_what_serves_in_other_sizes_is_told_and_left(
    invoke: Invoke, bundle: Bundle, other_sizes: Path, tmp_path: Path
) -> None:
    found = invoke("--out", tmp_path / "run", sizes=other_sizes, serving=lambda store, scenario: bundle.path)
    assert found.exit_code == 0, found.output
    assert "which serves: its towers.head_dim is 8, that of this run 4" in found.stderr
    assert load_run(tmp_path / "run").summary.warm_start is None


def test_a_given_bundle_of_other_sizes_is_refused(
    invoke: Invoke, bundle: Bundle, other_sizes: Path, tmp_path: Path
) -> None:
    found = invoke("--out", tmp_path / "run", "--warm-start", bundle.path, sizes=other_sizes)
    assert isinstance(found.exception, InputError)
    assert found.exception.exit_code == 2
    assert "cannot be carried over, its towers.head_dim is 8, that of this run 4" in str(found.exception)
    assert not (tmp_path / "run").exists()


def test_fresh_weights_may_be_asked_for_and_all_terms_be_given(invoke: Invoke, bundle: Bundle, tmp_path: Path) -> None:
    terms = ("--label-weight", 0.25, "--listwise-weight", 0.5, "--listwise-temperature", 2, "--tensorboard")
    none = ("--warm-start", "none")
    found = invoke("--out", tmp_path / "run", *terms, *none, serving=lambda store, scenario: bundle.path)
    assert found.exit_code == 0, found.output
    run = load_run(tmp_path / "run")
    assert run.summary.warm_start is None
    assert (run.config.label_weight, run.config.listwise_weight, run.config.listwise_temperature) == (0.25, 0.5, 2.0)
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_several_scenarios_are_learned_by_towers_with_domains(
    invoke: Invoke, config: DistillConfig, tmp_path: Path
) -> None:
    tower = msgspec.structs.replace(config.towers.query, num_experts=1, domain_experts=1)
    towers = msgspec.structs.replace(config.towers, query=tower, pin=tower, domains=("shopping", "standard"))
    dump_yaml(msgspec.structs.replace(config, towers=towers), tmp_path / "both.yaml")
    both = ("--scenario", "shopping", "--scenario", "standard")
    found = invoke("--out", tmp_path / "run", *both, sizes=tmp_path / "both.yaml")
    assert found.exit_code == 0, found.output
    assert "distilled shopping,standard from" in found.stdout


def test_the_preset_of_several_scenarios_takes_their_names() -> None:
    assert choose_config(None, None, ("a", "b"), {}).towers.domains == ("a", "b")


def test_a_file_and_a_preset_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="config: expected a file or a preset, got both"):
        choose_config("standard", tmp_path / "distill.yaml", ("standard",), {})


def test_a_weight_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"options: label_weight: expected .*, got 1.5"):
        choose_config("standard", None, ("standard",), {"label_weight": 1.5})


def test_a_missing_source_of_a_warm_start_is_told_before_anything_is_read(invoke: Invoke, tmp_path: Path) -> None:
    found = invoke("--out", tmp_path / "run", "--warm-start", tmp_path / "shopping")
    assert isinstance(found.exception, InputError)
    assert str(found.exception) == f"no run or bundle at {tmp_path / 'shopping'}"
    assert not (tmp_path / "run").exists()


def test_a_training_of_few_steps_is_warned_of(invoke: Invoke, tmp_path: Path) -> None:
    """The log has three days, and a batch is of one day."""
    found = invoke("--out", tmp_path / "run", "--pairs-per-batch", 1_000_000)
    assert found.exit_code == 0, found.output
    assert re.search(r"warning: \d+ steps only: lower --pairs-per-batch or raise --epochs\n", found.stderr)
    many = invoke("--out", tmp_path / "many", "--pairs-per-batch", 16)
    assert "steps only" not in many.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", "9"),
        ("pairs_per_batch", "2,048"),
        ("table_learning_rate", "0.15"),
        ("validation_share", "0.1"),
        ("patience", "3"),
        ("label_weight", "0"),
        ("listwise_weight", "0"),
        ("listwise_temperature", "1"),
        ("seed", "0"),
    ],
)
def test_the_help_tells_the_value_of_all_presets(option: str, value: str) -> None:
    configs = [preset() for preset in PRESETS.values()]
    found = {getattr(config if hasattr(config, option) else config.loop, option) for config in configs}
    assert {f"{number:,g}" for number in found} == {value}
    assert f"the presets' {value}" in _help(option)


def test_the_help_tells_the_range_of_the_presets_rates() -> None:
    rates = [preset().loop.learning_rate for preset in PRESETS.values()]
    assert f"the preset's, {min(rates):g} to {max(rates):g}" in _help("learning_rate")


def _help(option: str) -> str:
    command = get_command(app).commands["train"]
    return next(parameter.help for parameter in command.params if parameter.name == option)
