"""One student for several scenarios: which domain each row belongs to, and that it learns them together."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from contracts.errors import ConfigError, LogError
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from distill.config import DistillConfig
from distill.data import read_scored
from distill.domains import row_domains
from distill.run import Run, load_run
from distill.train import forward, train_student
from modeling.batches import gather
from modeling.examples import Examples

BOTH = ("standard", "shopping")


@pytest.fixture(scope="module")
def several(config: DistillConfig) -> DistillConfig:
    tower = msgspec.structs.replace(config.towers.query, num_experts=1, domain_experts=1)
    towers = msgspec.structs.replace(config.towers, query=tower, pin=tower, domains=BOTH)
    return msgspec.structs.replace(config, towers=towers, loop=msgspec.structs.replace(config.loop, epochs=15))


@pytest.fixture(scope="module")
def together(schema: FeatureSchema, log: LogPaths, tmp_path_factory: pytest.TempPathFactory) -> Examples:
    return read_scored(schema, log, tmp_path_factory.mktemp("both"), scenario=BOTH)


@pytest.fixture(scope="module")
def trained(
    schema: FeatureSchema, log: LogPaths, several: DistillConfig, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    return train_student(schema, log, tmp_path_factory.mktemp("run") / "both", several, scenario=BOTH)


def test_both_scenarios_are_read_and_no_other(together: Examples, examples: Examples, log: LogPaths) -> None:
    requests = pq.read_table(log.requests)
    assert len(together.request_ids) == len(requests)
    codes = np.asarray(together.scenario)[together.request_row]
    of_shopping = codes == together.summary.scenario_names.index("shopping")
    assert of_shopping.sum() == len(examples)


def test_a_batch_knows_the_domain_of_each_row(together: Examples) -> None:
    """Against the names in the log, row by row."""
    rows = np.random.default_rng(0).choice(len(together), 200, replace=False)
    batch = gather(together, rows)
    requests, ads = row_domains(together, BOTH).of(batch)
    scenario_of = {
        r["request_id"]: r["scenario"] for r in together.columns("requests", ["request_id", "scenario"]).to_pylist()
    }
    for pair, row in enumerate(rows.tolist()):
        request_id = together.request_ids[together.request_row[row]].as_py()
        ad_id = together.ad_ids[together.ad_row[row]].as_py()
        assert BOTH[requests[batch.request_index[pair]]] == scenario_of[request_id]
        assert BOTH[ads[batch.ad_index[pair]]] == ad_id.partition("-")[0]


def test_an_ad_of_no_domain_belongs_to_the_request_that_it_was_in(
    schema: FeatureSchema, log: LogPaths, tmp_path: Path
) -> None:
    ads = pq.read_table(log.ads)
    scenario = [None if number % 2 else "elsewhere" for number in range(len(ads))]
    index = ads.schema.get_field_index("scenario")
    pq.write_table(ads.set_column(index, "scenario", pa.array(scenario)), tmp_path / "ads.parquet")
    altered = replace(log, ads=str(tmp_path / "ads.parquet"))
    together = read_scored(schema, altered, tmp_path / "cache", scenario=BOTH)
    for ad_id, domain in zip(together.ad_ids.to_pylist(), row_domains(together, BOTH).ads.tolist(), strict=True):
        assert BOTH[domain] == ad_id.partition("-")[0]


def test_a_student_learns_both_scenarios(trained: Run, together: Examples) -> None:
    assert trained.summary.scenarios == BOTH
    assert trained.summary.scenario == "standard,shopping"
    assert trained.summary.history[-1]["loss"] < 0.3 * trained.summary.history[0]["loss"]
    batch, domains = gather(together, np.arange(100)), row_domains(together, BOTH)
    with torch.no_grad():
        loaded = forward(load_run(trained.path).model, batch, domains)
        assert torch.equal(loaded, forward(trained.model, batch, domains))


@pytest.mark.parametrize(("scenario", "expected"), [(BOTH[::-1], "shopping, standard"), ("shopping", "none")])
def test_domains_are_the_scenarios_that_are_learned(
    scenario: str | tuple[str, ...],
    expected: str,
    schema: FeatureSchema,
    log: LogPaths,
    several: DistillConfig,
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=f"towers.domains: expected {expected}, .* got standard, shopping"):
        train_student(schema, log, tmp_path, several, scenario=scenario)


def test_a_scenario_without_pairs_is_refused(schema: FeatureSchema, log: LogPaths, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="scenario nowhere has no pair to learn from in this period"):
        read_scored(schema, log, tmp_path, scenario=("standard", "nowhere"))
