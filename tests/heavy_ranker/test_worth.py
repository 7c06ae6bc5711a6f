"""A teacher that is no better than the base rate is told of, and refused where that was asked for."""

from pathlib import Path

import numpy as np
import pytest

from contracts.metrics import normalised_entropy
from heavy_ranker.evaluate import task_metrics
from heavy_ranker.worth import TeacherRefused, require_worth, warning, worthless_heads

LABELS = np.repeat([1.0, 0.0], [40, 160])


def metrics_of(logits: np.ndarray, labels: np.ndarray = LABELS) -> dict[str, dict[str, float]]:
    return task_metrics(("click",), logits[:, None], labels[:, None], np.ones(len(labels)))


def test_the_base_rate_is_worth_nothing_and_what_orders_rows_is_worth_something() -> None:
    base = np.full(200, np.log(0.2 / 0.8))
    found = metrics_of(base)
    assert normalised_entropy(LABELS, np.full(200, 0.2), np.ones(200)) == pytest.approx(1.0)
    assert worthless_heads(found, 1.0 - 1e-9) == ["click has a normalised entropy of 1.000 on 200 rows"]
    assert warning(metrics_of(-base)) is not None
    knowing = metrics_of(base + np.repeat([1.0, -0.5], [40, 160]))
    assert warning(knowing) is None
    assert require_worth(knowing, 1.0) == []
    with pytest.raises(TeacherRefused, match=r"click has a normalised entropy of 0\.\d+ .*, expected less than 0.5"):
        require_worth(knowing, 0.5)
    assert TeacherRefused.exit_code == 1


def test_a_head_of_few_positives_is_named_and_judges_nobody() -> None:
    labels = np.repeat([1.0, 0.0], [29, 171])
    found = metrics_of(np.zeros(200), labels)
    assert found["click"]["normalised_entropy"] > 1
    assert warning(found) is None
    assert require_worth(found, 1.0) == ["click: 29 positives among 200 rows, expected 30 of each kind"]
    assert require_worth({}, 1.0) == ["every head: the run has no validation part, validation_share is 0"]
    assert require_worth(metrics_of(np.zeros(200), np.full(200, np.nan)), 1.0)


def test_export_refuses_a_teacher_above_the_limit(invoke, run, log, tmp_path) -> None:
    given = ("--logs", Path(log.requests).parent, "--run", run.path, "--out", tmp_path / "bundle")
    with pytest.raises(TeacherRefused, match="nothing was sealed"):
        invoke("export", *given, "--max-normalised-entropy", 0.01)
    assert not (tmp_path / "bundle").exists()
