"""Objectives, probabilities and the order of utilities equal their definitions."""

import math

import numpy as np
import pytest

from contracts.probability import sigmoid
from contracts.utility import ObjectiveColumns, top_positions


def test_each_objective_pays_for_its_own_head():
    objectives = {"impression": None, "click": "click", "sale": "conversion"}
    columns = ObjectiveColumns(objectives, ["click", "conversion"])
    probabilities = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    codes = np.array([columns.codes[name] for name in ("sale", "impression", "click")])
    assert columns.probability(probabilities, codes).tolist() == [0.2, 1.0, 0.5]
    assert columns.heads(codes).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("objectives", "default"),
    [
        ({"impression": None, "click": "click"}, "click"),
        ({"sale": "conversion", "tap": "click"}, "tap"),
        ({"impression": None}, "impression"),
    ],
)
def test_the_default_objective(objectives, default):
    columns = ObjectiveColumns(objectives, ["click", "conversion"])
    assert columns.names[columns.default] == default


def test_codes_of_another_numbering():
    columns = ObjectiveColumns({"click": "click", "sale": "conversion"}, ["click", "conversion"])
    translated = columns.from_other(["sale", "gone", "click"])
    default = columns.codes["click"]
    assert translated[[0, 1, 2, -1]].tolist() == [columns.codes["sale"], default, columns.codes["click"], default]


def test_sigmoid_equals_its_formula_at_both_ends():
    logits = np.array([-1000, -30, -1, 0, 1, 30, 1000], np.float32)
    expected = [0.0, *(1 / (1 + math.exp(-x)) for x in (-30, -1, 0, 1, 30)), 1.0]
    np.testing.assert_allclose(sigmoid(logits), expected, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5, 50, 99, 100, 500])
def test_top_positions_equal_a_stable_sort(k):
    utilities = np.random.default_rng(k).integers(0, 12, 100).astype(float)  # many ties
    expected = sorted(range(100), key=lambda position: (-utilities[position], position))[:k]
    assert top_positions(utilities, k).tolist() == expected


def test_no_utilities_have_no_top():
    assert top_positions(np.zeros(0), 5).tolist() == []


def test_no_positions_are_asked_for() -> None:
    assert top_positions(np.array([1.0]), 0).tolist() == []
