"""deploy/nightly.sh on a small store, as processes: what a night publishes, and what it goes back from."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexing.store import DirectoryStore
from service.app import create_app
from service.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]  # ten commands a night, each a process of its own
SCENARIOS = ("standard", "shopping")


class Nights:
    """A store and what a night is told; each is run to its end."""

    def __init__(self, script: Path, artifacts: Path, root: Path) -> None:
        self.script, self.root, self.store = script, root, DirectoryStore(root / "store")
        self.started: list[subprocess.Popen[str]] = []
        for scenario in SCENARIOS:
            (root / "bundles").mkdir(exist_ok=True)
            (root / "bundles" / scenario).symlink_to(artifacts / f"{scenario}-0")
            self.catalogue(scenario, pq.read_table(artifacts / "ads" / scenario))
            body = {"scenario": scenario, "query": {"country": "DE"}, "candidates": [f"{scenario}-1"]}
            (root / f"canary-{scenario}.json").write_text(json.dumps(body))
        limits = {"min_requests": 3, "max_unknown_share": 0.5}  # of three requests each
        (root / "limits.yaml").write_text(json.dumps(limits))
        self.settings = {
            "ADSIEVE_STORE": str(root / "store"),
            "NIGHTLY_SCENARIOS": " ".join(SCENARIOS),
            "NIGHTLY_ADS": str(root / "ads-@.parquet"),
            "NIGHTLY_TWO_TOWER": str(root / "bundles" / "@"),
            "NIGHTLY_HEAVY": str(artifacts / "heavy"),
            "NIGHTLY_WORK": str(root / "work"),
            "NIGHTLY_LIMITS": str(root / "limits.yaml"),
            "NIGHTLY_CANARY": str(root / "canary-@.json"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    def catalogue(self, scenario: str, ads: pa.Table) -> None:
        pq.write_table(ads, self.root / f"ads-{scenario}.parquet")

    def read(self, scenario: str) -> pa.Table:
        return pq.read_table(self.root / f"ads-{scenario}.parquet")

    def start(self, **changes: str) -> "subprocess.Popen[str]":
        environment = os.environ | self.settings | changes
        process = subprocess.Popen(["sh", str(self.script)], env=environment, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def run(self, **changes: str) -> tuple[int, str]:
        process = self.start(**changes)
        _, told = process.communicate(timeout=900)
        return process.returncode, told

    def serving(self) -> dict[str, str]:
        return {scenario: self.store.current(scenario).release_id for scenario in self.store.scenarios()}


@pytest.fixture(scope="module")
def nights(deploy, artifacts, tmp_path_factory) -> Nights:
    """After a first night, which went well."""
    nights = Nights(deploy / "nightly.sh", artifacts, tmp_path_factory.mktemp("nights"))
    code, told = nights.run()
    assert code == 0, told
    assert set(nights.serving()) == set(SCENARIOS)
    return nights


@pytest.fixture
def own(nights):
    """The same; the catalogues are put back at the end."""
    kept = {scenario: nights.read(scenario) for scenario in SCENARIOS}
    yield nights
    for process in nights.started:
        if process.poll() is None:  # of a test that failed
            process.terminate()
            process.communicate(timeout=60)
    for scenario, ads in kept.items():
        nights.catalogue(scenario, ads)


def test_a_night_publishes_both_and_a_running_service_takes_them_up(own, servers):
    before = own.serving()
    settings = Settings(store=own.root / "store", query_engine="onnxruntime_cpu", heavy_engine="onnxruntime_cpu")
    with servers.serving(create_app(settings)) as url:
        code, told = own.run(NIGHTLY_URL=url, NIGHTLY_PATIENCE_S="60", NIGHTLY_KEEP="1")
    assert code == 0, told
    assert {scenario for scenario, release in own.serving().items() if release != before[scenario]} == set(SCENARIOS)
    assert [len(own.store.list(scenario)) for scenario in SCENARIOS] == [1, 1]
    assert sorted(path.name for path in (own.root / "work").glob("index-*")) == []


def test_a_build_that_fails_leaves_both_as_they_were(own):
    before = own.serving()
    own.catalogue("shopping", own.read("shopping").drop_columns(["price"]))  # the one that is built last
    code, told = own.run()
    assert (code, own.serving()) == (2, before), told
    assert "price" in told


def test_a_publish_that_is_refused_takes_the_other_back_too(own):
    before = own.serving()
    own.catalogue("shopping", own.read("shopping").slice(20))
    code, told = own.run()
    assert (code, own.serving()) == (1, before), told
    assert f"standard: rolled back to {before['standard']}" in told
    assert f"shopping: {before['shopping']} still serves" in told
    assert "lacking_share" in told


def test_a_release_that_answers_a_canary_with_no_ad_is_taken_back(own):
    before = own.serving()
    own.catalogue("shopping", own.read("shopping").filter(pa.compute.field("ad_id") != "shopping-1"))
    code, told = own.run()
    assert (code, own.serving()) == (1, before), told
    assert "the canary got 0 ads" in told
    assert [f"{scenario}: rolled back to {before[scenario]}" in told for scenario in SCENARIOS] == [True, True]


def test_a_service_that_does_not_take_it_up_in_time_takes_it_back(own):
    before = own.serving()
    code, told = own.run(NIGHTLY_URL="http://127.0.0.1:9", NIGHTLY_PATIENCE_S="1")
    assert (code, own.serving()) == (1, before), told
    assert "does not serve" in told


def test_a_night_that_is_stopped_after_its_publish_goes_back(own):
    before = own.serving()
    process = own.start(NIGHTLY_URL="http://127.0.0.1:9", NIGHTLY_PATIENCE_S="200")
    lines = iter(process.stderr.readline, "")
    told = next(line for line in lines if "wait for" in line)
    assert own.serving() != before
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=60)[1]
    assert (process.returncode, own.serving()) == (1, before), told + rest
    assert time.monotonic() - begin < 150, "it waited for its child"


def test_two_nights_at_once_are_refused(own):
    first = own.start(NIGHTLY_URL="http://127.0.0.1:9", NIGHTLY_PATIENCE_S="200")
    lines = iter(first.stderr.readline, "")
    next(line for line in lines if "build" in line)
    before = own.serving()
    code, told = own.run()
    assert (code, "another night is at work" in told) == (1, True), told
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert own.serving() == before
