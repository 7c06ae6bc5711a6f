from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pytest
import typer
from scipy.special import expit

from contracts.console import print_json, print_table, table, utc_time
from contracts.probability import sigmoid


@pytest.mark.parametrize("text", ["2026-03-01", "2026-03-01T00:00:00Z", "2026-03-01T01:00:00+01:00"])
def test_times_are_utc_unless_they_name_a_zone(text: str) -> None:
    assert utc_time(text) == datetime(2026, 3, 1, tzinfo=UTC)
    assert utc_time(text).utcoffset() in (timedelta(0), timedelta(hours=1))


def test_what_is_no_time_is_wrong_usage() -> None:
    with pytest.raises(typer.BadParameter, match="expected an ISO 8601 date or time, got 'yesterday'"):
        utc_time("yesterday")


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"auc": float("nan"), "rows": 3})
    assert msgspec.json.decode(capsys.readouterr().out) == {"auc": None, "rows": 3}


def test_sigmoid_equals_scipy() -> None:
    logits = np.linspace(-900, 900, 4001, dtype=np.float32)
    np.testing.assert_allclose(sigmoid(logits), expit(logits.astype(np.float64)), rtol=1e-14)


def test_a_table_loses_no_value_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    found = table("slice", "task", numbers=("rows", "log loss", "calibration"))
    found.add_column("")
    remark = "no better than always predicting the mean"
    found.add_row("validation", "conversion", "1,234,567", "0.6931", "1.000", remark)
    print_table(found)
    printed = capsys.readouterr().out
    assert all(value in printed for value in ("validation", "conversion", "1,234,567", "0.6931", "1.000"))
    assert set(remark.split()) <= set(printed.split())
