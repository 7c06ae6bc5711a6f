"""A failure of the launch gate reads as a sentence: by how much, and what is allowed."""

import pytest

from distill.gate_record import Failure

PLACE = {"stage": "all", "slice": "device", "value": "phone", "head": "click", "against": "teacher"}
FIGURES = {"rows": 2000, "requests": 100, "low": 0.1, "high": 0.2}


@pytest.mark.parametrize(
    ("metric", "limit", "allowed", "excess", "expected"),
    [
        ("calibration", "calibration_off", 0.1, 0.25, "off by a factor of 1.25 where 1.1 is allowed"),
        ("kl", "kl_rise", 0.05, 0.5, "a relative rise of 0.5"),
        ("auc", "auc_fall", 0.005, 0.02, "lower by 0.02"),
    ],
)
def test_a_line_says_by_how_much(metric: str, limit: str, allowed: float, excess: float, expected: str) -> None:
    figures = {**FIGURES, "before": 1.0, "after": 0.8, "excess": excess}
    line = Failure(limit=limit, allowed=allowed, metric=metric, **PLACE, **figures).line()
    assert line == (
        f"all, device phone: {metric} of click against teacher 1 -> 0.8, {expected}, difference 0.1 to 0.2; "
        f"{limit} allows {allowed} (2,000 rows, 100 requests)"
    )
