"""The queries of the how-to page over an evaluation: DuckDB and Polars read it as it lies, and find what it says."""

import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from contracts.artifact import write_json
from distill.evaluate import Report
from distill.slice_table import write_slices

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "analyse.md"
SECTION = PAGE.read_text().split("\n## Evaluation\n")[1]
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL))


@pytest.fixture
def report(make_report: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    made = make_report.make_report()
    (tmp_path / "report").mkdir()
    write_slices(made.evaluations, tmp_path / "report" / "slices.parquet")
    write_json(tmp_path / "report" / "report.json", made)
    monkeypatch.chdir(tmp_path)
    return made


def test_the_pages_queries_find_what_the_evaluation_says(report: Report) -> None:
    found: dict[str, Any] = {}
    exec(compile(CODE.replace('"day"', '"column_0"'), str(PAGE), "exec"), found)
    rows = [row for one in report.evaluations for row in one.slices]
    off = [
        row
        for row in rows
        if (row.model, row.against) == ("student", "labels")
        and (row.intervals["calibration"][0] > 1 or row.intervals["calibration"][1] < 1)
    ]
    expected = sorted((abs(math.log(row.calibration)) for row in off), reverse=True)[:10]
    assert expected
    assert [abs(math.log(one[5])) for one in found["off"]] == pytest.approx(expected)
    for stage, head, student, teacher in found["beside"]:
        for model, auc in (("student", student), ("teacher", teacher)):
            told = [
                row.auc
                for row in rows
                if (row.stage, row.head, row.model, row.against, row.slice) == (stage, head, model, "labels", "all")
                and not math.isnan(row.auc)
            ]
            assert auc == (max(told) if told else None)
    assert found["beside"]
    assert found["told"] == [(one.bundle, one.scenario, one.pairs, one.requests) for one in report.evaluations]
    days = {row.value for row in rows if row.slice == "column_0"}
    assert days
    assert set(found["days"].columns) == {"stage", "head"} | days
