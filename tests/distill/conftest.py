"""A small scored log, a student distilled from it, and its sealed bundle."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.bundle import Bundle
from contracts.config import convert
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from distill.config import DistillConfig
from distill.evaluate import Report
from distill.publish import publish_student
from distill.report import render_html
from distill.run import Run
from distill.train import train_student
from loading import load
from modeling.examples import Examples, encode_log
from modeling.loop_config import LoopConfig
from towers.config import TowerConfig, TwoTowerConfig

SCHEMA = {
    "version": 1,
    "tasks": ["click", "conversion"],
    "objectives": {"impression": None, "click": "click", "conversion": "conversion"},
    "tables": {
        "country": {"dim": 4, "vocabulary": ["DE", "日本"]},
        "ad": {"dim": 8, "buckets": 128},
        "category": {"dim": 4, "buckets": 16},
    },
    "features": {
        "country": {"side": "query", "kind": "categorical", "table": "country"},
        "activity": {"side": "query", "kind": "dense", "default": 0.5},
        "clicks": {
            "side": "query",
            "kind": "sequence",
            "max_length": 4,
            "fields": {"ad_id": {"kind": "categorical", "table": "ad"}, "time": {"kind": "age", "buckets": 8}},
        },
        "ad_id": {"side": "ad", "kind": "categorical", "table": "ad"},
        "category": {"side": "ad", "kind": "categorical", "table": "category"},
        "price": {"side": "ad", "kind": "dense", "transform": "log1p", "default": 1.0},
    },
}


@pytest.fixture(scope="session")
def make_log() -> ModuleType:
    return load("distill/make_log.py")


@pytest.fixture(scope="session")
def make_report() -> ModuleType:
    return load("distill/make_report.py")


@pytest.fixture(scope="module")
def file(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a module's own report."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_html(report), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def report_browser() -> ModuleType:
    return load("distill/report_browser.py")


@pytest.fixture(scope="session")
def browser(report_browser: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Reports on a page of a headless Chromium of the system."""
    chromium = load("distill/chromium.py")
    program = chromium.find_chromium()
    if program is None:
        pytest.skip("needs a Chromium on the PATH: apt-get install chromium")
    with chromium.open_chromium(program, tmp_path_factory.mktemp("profile")) as page:
        yield report_browser.ReportBrowser(page)


@pytest.fixture(scope="session")
def log_directory(tmp_path_factory: pytest.TempPathFactory, make_log: ModuleType) -> Path:
    return make_log.write_log(tmp_path_factory.mktemp("log"))


@pytest.fixture(scope="session")
def log(log_directory: Path) -> LogPaths:
    return LogPaths.under(log_directory)


@pytest.fixture
def altered_log(log_directory: Path, tmp_path: Path) -> Callable[[Callable[[pa.Table], pa.Table]], LogPaths]:
    """Makes a log whose last part of the candidates was changed by a function."""

    def alter(change: Callable[[pa.Table], pa.Table]) -> LogPaths:
        shutil.copytree(log_directory / "candidates", tmp_path / "candidates")
        path = max((tmp_path / "candidates").iterdir())
        pq.write_table(change(pq.read_table(path)), path)
        return LogPaths.under(log_directory, tmp_path / "candidates")

    return alter


@pytest.fixture(scope="session")
def schema() -> FeatureSchema:
    return convert(SCHEMA, FeatureSchema, source="schema")


@pytest.fixture(scope="session")
def config() -> DistillConfig:
    """A training of two seconds that learns the teacher."""
    tower = TowerConfig(
        width=16, num_experts=2, full_rank_layers=1, low_rank_layers=1, rank=4, hidden_dims=(16,), gate_hidden_dim=8
    )
    return DistillConfig(
        towers=TwoTowerConfig(query=tower, pin=tower, head_dim=8),
        loop=LoopConfig(epochs=30, learning_rate=1e-2),
        table_learning_rate=0.1,
        pairs_per_batch=128,
        validation_share=0.2,
        seed=1,
    )


@pytest.fixture(scope="session")
def examples(schema: FeatureSchema, log: LogPaths, tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """All scored pairs of the scenario ``shopping``."""
    cache = tmp_path_factory.mktemp("examples")
    return encode_log(schema, log, cache, teacher=True, labels=False, scenario="shopping")


@pytest.fixture(scope="session")
def run(schema: FeatureSchema, log: LogPaths, config: DistillConfig, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_student(schema, log, tmp_path_factory.mktemp("run") / "shopping", config, scenario="shopping")


@pytest.fixture(scope="session")
def bundle(run: Run, log: LogPaths, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return publish_student(run, log, tmp_path_factory.mktemp("bundle") / "shopping", threads=1)
