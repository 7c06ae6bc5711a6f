"""The training benchmark runs through, at sizes at which its figures mean nothing."""

import math

import pytest

from benchmarks import heavy_training, our_training, training_quality
from benchmarks.training_log import training_log


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    schema, _, examples = training_log(tmp_path_factory.mktemp("training"), "tiny")
    return schema, examples


@pytest.fixture
def few_rows(monkeypatch):
    sizes = {"BATCH": 32, "SWEEP": (32, 64), "PLAIN_SWEEP": (16,), "BLOCKS": 1, "LOADER_BLOCKS": 1}
    for name, value in (sizes | {"OUR_ROWS": 64, "PLAIN_ROWS": 16, "LOADED_BATCH": 64, "PARTS": 2}).items():
        monkeypatch.setattr(heavy_training, name, value)
    monkeypatch.setattr(heavy_training, "has_compiler", lambda: False)
    monkeypatch.setattr(our_training, "compiled", lambda function: function)


def test_speed_gives_every_figure_that_is_asked_for(log, few_rows):
    figures, targets = heavy_training.speed(*log)
    shares = [value for name, value in figures.items() if name.startswith("share of a step")]
    assert len(shares) == 5
    assert math.isclose(sum(shares), 1.0)
    assert len([name for name in figures if name.startswith("ours bf16 eager")]) == 2
    assert figures["compiling"] == "no C++ compiler: eager"
    assert [target.at_least for target in targets] == [4, 20, 0.5]
    assert all(target.value > 0 for target in targets)


def test_quality_compares_the_same_training_in_two_precisions(log, monkeypatch):
    monkeypatch.setattr(training_quality, "SEEDS", (0, 1))
    figures, (target,) = training_quality.quality(*log)
    assert figures["validation loss, fp32, mean of 2 seeds"] > 0
    assert abs(target.value) < 0.05
