from pathlib import Path

import pytest

from benchmarks import heavy_simulated
from benchmarks.heavy_simulated import LAYERS, OTHERS, OURS, Row, Tried, asked_for, row_of, targets
from benchmarks.truth_quality import Calibration

ROW = Row(
    "hyformer, 1 layer, all rows",
    {
        "click, expected log loss above the truth's": 0.015,
        "click, worst slice": "device tv",
        "next day: click, expected log loss above the truth's": 0.5,
    },
    [Calibration("click", "device", "tv", 3_000.0, 0.96), Calibration("click", "device", "phone", 9_000.0, 1.01)],
)


def test_targets_are_asked_of_the_held_out_requests_alone() -> None:
    found = {target.name.removeprefix(f"{ROW.name}: "): target for target in targets(ROW)}
    assert found.keys() == {"click, expected log loss above the truth's", "calibration error of the worst slice"}
    assert found["click, expected log loss above the truth's"].met
    assert found["calibration error of the worst slice"].value == pytest.approx(0.04)
    assert not found["calibration error of the worst slice"].met


def test_every_backbone_and_depth_is_tried_under_one_budget() -> None:
    first, *rest = asked_for(backbones=True, most_rows=500, passes=3)
    assert (first.backbones, first.most_rows, first.passes) == (OURS, None, 3)
    assert {(asked.backbones, asked.layers) for asked in rest} == {(b, n) for b in (OURS, *OTHERS) for n in LAYERS}
    assert {(asked.most_rows, asked.passes) for asked in rest} == {(500, 1)}
    assert len({asked.name for asked in (first, *rest)}) == 1 + len(rest)


def test_a_row_that_is_kept_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(heavy_simulated, "train_and_judge", lambda log, asked, out: calls.append(out) or ROW)
    asked = Tried(OURS, 1, None)
    assert row_of(None, asked, tmp_path) == row_of(None, asked, tmp_path) == ROW
    assert calls == [tmp_path / asked.name]
