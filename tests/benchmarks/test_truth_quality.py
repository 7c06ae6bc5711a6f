import math

import numpy as np
import pytest

from benchmarks.truth_quality import calibrations, expected_excess, expected_log_loss, realised_excess, worst
from distill.slices import SliceColumn

TRUTH = np.array([0.1, 0.4, 0.7, 0.2])
PREDICTED = np.array([0.2, 0.3, 0.8, 0.2])


def test_expected_log_loss_is_the_mean_over_all_labels_that_could_be_drawn() -> None:
    total = 0.0
    for labels in np.ndindex(2, 2, 2, 2):
        chance = math.prod(p if y else 1 - p for p, y in zip(TRUTH, labels, strict=True))
        loss = -sum(math.log(q if y else 1 - q) for q, y in zip(PREDICTED, labels, strict=True)) / 4
        total += chance * loss
    assert expected_log_loss(TRUTH, PREDICTED) == pytest.approx(total)


def test_excess_is_zero_for_the_truth_and_positive_for_anything_else() -> None:
    assert expected_excess(TRUTH, TRUTH) == 0.0
    assert expected_excess(TRUTH, PREDICTED) > 0.0
    labels = np.array([0.0, 1.0, np.nan, 0.0])
    assert realised_excess(labels, TRUTH, TRUTH) == 0.0
    known = -np.array([math.log(0.8), math.log(0.3), math.log(0.8)]).sum()
    true = -np.array([math.log(0.9), math.log(0.4), math.log(0.8)]).sum()
    assert realised_excess(labels, TRUTH, PREDICTED) == pytest.approx(known / true - 1)


def test_predictions_of_zero_and_one_cost_much_but_not_infinitely() -> None:
    assert math.isfinite(expected_log_loss(TRUTH, np.array([0.0, 1.0, 1.0, 0.0])))


def test_calibration_of_slices_with_enough_expected_positives() -> None:
    device = SliceColumn(np.array([0, 0, 1, 1]), ("phone", "tv"))
    found = list(calibrations("click", TRUTH, PREDICTED, {"device": device}, least_positives=0.6))
    assert [(one.column, one.value) for one in found] == [("all", "all"), ("device", "tv")]
    assert [one.ratio for one in found] == pytest.approx([1.5 / 1.4, 1.0 / 0.9])
    assert worst(found).value == "tv"
    assert worst(found).error == pytest.approx(1.0 / 0.9 - 1.0)
