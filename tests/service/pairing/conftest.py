"""What a host serves through a day, and a judge who computes every number by itself."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from loading import load
from service.settings import Settings


@pytest.fixture(scope="session")
def tools() -> SimpleNamespace:
    """The modules of this folder."""
    names = ("models", "plain", "day", "judge", "flight", "host")
    return SimpleNamespace(**{name: load(f"service/pairing/{name}.py") for name in names})


@pytest.fixture(scope="session")
def models(tools: Any, sealing: ModuleType, example_query: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Bundles and indexes, built once."""
    body = {"scenario": tools.models.SCENARIO, "query": example_query(0), "event_time": tools.host.EVENT_TIME}
    requests = [body | {"candidates": {"ids": ["ad-1", "ad-2", "gone"], "affinity": [0.5, None, 1]}}]
    return tools.models.make_models(tmp_path_factory.mktemp("pairing"), sealing, requests)


@pytest.fixture(scope="session")
def judge(tools: Any, models: Any, sealing: ModuleType) -> Any:
    """Computes what each version says of an ad."""
    plain, columns = tools.plain, tools.models.COLUMNS
    return tools.judge.Judge(
        {bundle.manifest.version: plain.PlainTower(bundle, columns) for bundle in models.towers},
        {bundle.manifest.version: plain.PlainHeavy(bundle, columns) for bundle in models.heavies},
        scenario=tools.models.SCENARIO,
        tasks=sealing.TASKS,
        moment_us=tools.host.MOMENT_US,
    )


@pytest.fixture(scope="session")
def new_host(tools: Any, models: Any, judge: Any, example_query: Any) -> Callable[[], AbstractContextManager[Any]]:
    """A host with a store of its own, with one release; nothing is left of it."""

    @contextmanager
    def make() -> Iterator[Any]:
        with TemporaryDirectory() as root:
            settings = Settings(
                store=Path(root) / "store",
                engine_threads=1,
                heavy_engine="onnxruntime_cpu",
                query_engine="onnxruntime_cpu",
                update_wait_s=5.0,
                failed_retry_s=0.0,
            )
            day = tools.day.Day(tools.models.SCENARIO, models.ads, list(tools.models.COLUMNS))
            host = tools.host.Host(tools, models, judge, day, Path(root), settings, example_query)
            try:
                yield host
            finally:
                host.close()

    return make
