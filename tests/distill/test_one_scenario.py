"""A run of several scenarios as the run of one: its model and configuration belong together."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from contracts.errors import InputError
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from contracts.tensors import read_tensors
from distill.config import DistillConfig
from distill.one_scenario import of_scenario
from distill.publish import publish_student
from distill.run import Run, build_student
from distill.train import forward, train_student
from distill.warmstart import open_source
from modeling.batches import gather
from modeling.examples import Examples
from modeling.weights import load_weights, model_weights

SCENARIOS = ("standard", "shopping")


@pytest.fixture(scope="module")
def joint(schema: FeatureSchema, log: LogPaths, config: DistillConfig, tmp_path_factory: pytest.TempPathFactory) -> Run:
    tower = msgspec.structs.replace(config.towers.query, num_experts=1, domain_experts=1)
    towers = msgspec.structs.replace(config.towers, query=tower, pin=tower, domains=SCENARIOS)
    loop = msgspec.structs.replace(config.loop, epochs=3)
    changed = msgspec.structs.replace(config, towers=towers, loop=loop)
    return train_student(schema, log, tmp_path_factory.mktemp("joint") / "run", changed, scenario=SCENARIOS)


def test_the_run_of_one_scenario_scores_as_the_joint_one(joint: Run, examples: Examples) -> None:
    batch = gather(examples, np.arange(200))
    number = SCENARIOS.index("shopping")
    domains = (torch.full((len(batch.query.ids),), number), torch.full((len(batch.ad.ids),), number))
    alone = of_scenario(joint, "shopping")
    with torch.no_grad():
        expected = joint.model(batch.query, batch.ad, batch.request_index, batch.ad_index, domains)
        torch.testing.assert_close(forward(alone.model, batch), expected)
    assert (alone.summary.scenario, alone.summary.scenarios) == ("shopping", ())


def test_its_weights_are_those_of_the_student_that_its_configuration_builds(joint: Run) -> None:
    alone = of_scenario(joint, "standard")
    built = build_student(alone.schema, alone.config)
    load_weights(built, model_weights(alone.model), source=Path("folded"))
    for name, value in model_weights(built).items():
        torch.testing.assert_close(value, model_weights(alone.model)[name], rtol=0, atol=0)


def test_a_run_of_one_scenario_is_itself(run: Run) -> None:
    assert of_scenario(run) is run
    assert of_scenario(run, "shopping") is run


def test_a_scenario_has_to_be_named_and_known(joint: Run, run: Run) -> None:
    with pytest.raises(InputError, match="was distilled for standard and shopping; name one with --scenario"):
        of_scenario(joint)
    with pytest.raises(InputError, match="scenario: expected standard or shopping, of .*, got 'video'"):
        of_scenario(joint, "video")
    with pytest.raises(InputError, match="scenario: expected shopping, of .*, got 'standard'"):
        of_scenario(run, "standard")


def test_a_bundle_of_one_scenario_is_an_ordinary_student(joint: Run, log: LogPaths, tmp_path: Path) -> None:
    alone = of_scenario(joint, "shopping")
    bundle = publish_student(alone, log, tmp_path / "bundle")
    assert bundle.manifest.scenario == "shopping"
    states = read_tensors(bundle.file("optimizer.safetensors"))
    assert states
    assert all(name.startswith("tables.") for name in states)
    source = open_source(tmp_path / "bundle")
    assert source.config.towers.domains == ()
    for name, value in model_weights(source.model).items():
        torch.testing.assert_close(value, model_weights(alone.model)[name], rtol=0, atol=0)
