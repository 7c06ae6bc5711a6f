"""Parts that do not belong together are wrong input, exit code 2, and a refused release names its figures."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from contracts.errors import WrongArtifactError
from indexing.cli import app
from indexing.config import IndexConfig
from indexing.nightly import build_index
from indexing.release_limits import ReleaseLimits, failures


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def code(result: Result) -> int:
    assert isinstance(result.exception, WrongArtifactError), result.output
    return result.exception.exit_code


@pytest.fixture
def index(ads: Path, bundles: Path, tmp_path: Path) -> Path:
    settings = IndexConfig(threads=1, precision="fp32", engine="onnxruntime_cpu")
    build_index(ads=str(ads), two_tower=bundles / "two_tower", heavy=None, out=tmp_path / "index", config=settings)
    return tmp_path / "index"


def test_another_pair_is_wrong_input_of_publish_build_and_reencode(
    index: Path, ads: Path, bundles: Path, make_two_tower: Callable, make_heavy: Callable, tmp_path: Path
) -> None:
    other = make_two_tower(tmp_path / "other", seed=1).path
    foreign = make_heavy(tmp_path / "foreign", scenario="standard").path
    store = ["--store", tmp_path / "store"]
    for dry in ([], ["--dry-run"]):
        refused = run("publish", "--two-tower", other, "--index", index, *store, *dry)
        assert code(refused) == 2
        assert "was embedded by" in str(refused.exception)
    own = ["--two-tower", bundles / "two_tower"]
    assert code(run("publish", *own, "--heavy", bundles / "heavy", "--index", index, *store)) == 2
    assert not (tmp_path / "store" / "releases").exists()
    assert code(run("build", "--ads", ads, *own, "--heavy", foreign, "--out", tmp_path / "new")) == 2
    assert code(run("reencode", "--index", index, "--heavy", foreign, "--ads", ads, "--out", tmp_path / "new")) == 2


def test_a_calibration_beyond_its_limit_says_by_how_much_and_which_way() -> None:
    limits = msgspec.structs.replace(ReleaseLimits(), max_calibration_heavy=1.0, max_calibration_current=0.5)
    metrics = {"requests": 32.0, "calibration_heavy.click": 0.255, "calibration_current.buy": 3.0}
    assert failures(limits, metrics) == [
        "calibration_heavy.click is 0.255, which is 3.922 times too low; max_calibration_heavy allows 1, "
        "so 2 times either way",
        "calibration_current.buy is 3, which is 3 times too high; max_calibration_current allows 0.5, "
        "so 1.5 times either way",
    ]
    assert failures(limits, {"requests": 32.0, "calibration_heavy.click": 0.5}) == []
