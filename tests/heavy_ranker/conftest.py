"""Seeds, the plain reference forms, and randomised modules, so that no test passes because a weight is zero or one."""

import pytest
import torch
from typer.testing import CliRunner

from contracts.config import convert
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from heavy_ranker.cli import app
from heavy_ranker.config import HeavyConfig, ModelConfig
from heavy_ranker.export import export_heavy
from heavy_ranker.train import train_heavy
from loading import load
from modeling.loop_config import LoopConfig


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(7)


@pytest.fixture(scope="session")
def reference():
    """Plain NumPy forms of the blocks."""
    return load("heavy_ranker/reference.py")


@pytest.fixture(scope="session")
def randomised():
    """Replace every parameter by random values: gains are no longer one, biases no longer zero."""

    def apply(module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.1)
        return module

    return apply


@pytest.fixture(scope="session")
def schema():
    """A small schema with all kinds of features, two sequences of different lengths, and a chain of three tasks."""
    ad_field = {"ad": {"kind": "categorical", "table": "ad"}}
    age_field = {"time": {"kind": "age", "buckets": 16, "dim": 4}}
    features = {
        "country": {"side": "query", "kind": "categorical", "table": "country"},
        "user_ctr": {"side": "query", "kind": "dense", "default": 0.4},
        "clicks": {"side": "query", "kind": "sequence", "max_length": 5, "fields": ad_field | age_field},
        "views": {
            "side": "query",
            "kind": "sequence",
            "max_length": 3,
            "fields": ad_field,
        },
        "ad_id": {"side": "ad", "kind": "categorical", "table": "ad"},
        "tags": {"side": "ad", "kind": "multi_categorical", "table": "tag", "max_length": 3},
        "price": {"side": "ad", "kind": "dense", "transform": "log1p", "default": 1.0},
        "seen": {"side": "pair", "kind": "dense", "transform": "log1p", "default": 0.0},
    }
    data = {
        "tasks": ["click", "conversion", "deep_conversion"],
        "objectives": {"click": "click", "conversion": "conversion"},
        "tables": {
            "country": {"dim": 4, "vocabulary": ["DE", "日本"]},
            "ad": {"dim": 8, "buckets": 64},
            "tag": {"dim": 4, "buckets": 32},
        },
        "features": features,
    }
    return convert(data, FeatureSchema, source="test schema")


@pytest.fixture(scope="session")
def sizes():
    """Small sizes that differ from one another, so that a swapped axis cannot go unnoticed."""
    return ModelConfig(
        token_dim=8,
        query_tokens=2,
        ad_tokens=2,
        queries_per_sequence=2,
        query_hidden_dim=6,
        num_layers=1,
        num_heads=2,
        sequence_expansion=2,
        num_slices=4,
        mixer_expansion=2,
        shared_experts=2,
        task_experts=1,
        expert_dim=12,
        head_dims=(10,),
    )


@pytest.fixture(scope="session")
def log(tmp_path_factory):
    """600 requests with four ads each, three of them shown; with the true probabilities."""
    return LogPaths.under(load("heavy_ranker/make_log.py").write_log(tmp_path_factory.mktemp("log")))


@pytest.fixture(scope="session")
def config(sizes):
    """A training of a few seconds that learns the log's clicks."""
    return HeavyConfig(
        model=sizes,
        loop=LoopConfig(epochs=4, learning_rate=1e-2, warmup_share=0.1),
        table_learning_rate=0.1,
        fresh_tables=False,
        batch_size=64,
        validation_share=0.2,
        seed=3,
    )


@pytest.fixture(scope="session")
def run(schema, log, config, tmp_path_factory):
    """A finished run."""
    return train_heavy(schema, log, tmp_path_factory.mktemp("run") / "heavy", config)


@pytest.fixture(scope="session")
def bundle(run, log, tmp_path_factory):
    """The run, sealed."""
    return export_heavy(run, log, tmp_path_factory.mktemp("bundle") / "heavy")


@pytest.fixture
def invoke():
    """Run one command; errors that the front door turns into exit codes come out as they are."""

    def call(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call
