"""Exported graphs of trained students of every kind, on all rows of a log: scores and orders equal the module's.

Shapes: R requests, A ads, H heads.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import torch

from contracts.bundle import GRAPHS, WEIGHTS_FILE
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from contracts.tensors import read_tensors
from distill.config import DistillConfig
from distill.train import train_student
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from modeling.examples import Examples, encode_log
from towers.config import TowerConfig, TwoTowerConfig
from towers.export import ParityRows, export_two_tower
from towers.multi_domain import fold_domain
from towers.serving import TwoTowerServing, score, split_pin_embedding
from towers.two_tower import TwoTower

SCENARIOS = ("standard", "shopping")
SCORE_TOLERANCE, TIE = 1e-5, 2e-5
SURVIVORS = 100
RARE = -9.0


@dataclass(frozen=True)
class Exported:
    """A trained student and its graphs, with real rows of its scenario."""

    model: TwoTower
    graphs: Path
    served: TwoTowerServing
    examples: Examples

    def logits(self) -> np.ndarray:
        """The module's, of every request with every ad row, [R, A, H]."""
        query, pin = _embeddings(self.model, self.examples)
        return torch.einsum("rhd,ahd->rah", query, pin).numpy()

    def served_logits(self, dtype: type[np.floating], shift: np.ndarray | float = 0.0) -> np.ndarray:
        """The same through the graphs, with vectors as an index of that precision holds them.

        Args:
            dtype: Of the vectors.
            shift: Added to the query tower's biases [H].
        """
        vectors, bias = split_pin_embedding(self.served.embed_ads(self.examples.ad))
        query = self.served.embed_query(self.examples.query)
        query[:, :, -1] += shift
        return np.stack([score(embedding, vectors.astype(dtype), bias) for embedding in query])


def _tower(kind: str, **changes: Any) -> TowerConfig:
    if kind == "mlp":
        return TowerConfig(kind="mlp", width=16, hidden_dims=(24, 16))
    experts = {"num_experts": 1, "domain_experts": 1} if kind == "multi_domain" else {"num_experts": 2}
    arrangement = "parallel" if kind == "parallel" else "stacked"
    return TowerConfig(
        width=16,
        full_rank_layers=1,
        low_rank_layers=2,
        rank=4,
        hidden_dims=(16,),
        gate_hidden_dim=8,
        arrangement=arrangement,
        **experts,
    )


@pytest.fixture(scope="module", params=["stacked", "parallel", "mlp", "multi_domain"])
def exported(
    request: pytest.FixtureRequest,
    schema: FeatureSchema,
    log: LogPaths,
    config: DistillConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> Exported:
    """Trained on all days; the multi-domain student on both scenarios, then folded to one."""
    kind, directory = request.param, tmp_path_factory.mktemp("student")
    domains = SCENARIOS if kind == "multi_domain" else ()
    towers = TwoTowerConfig(query=_tower(kind), pin=_tower(kind), head_dim=8, domains=domains)
    loop = msgspec.structs.replace(config.loop, epochs=6)
    changed = msgspec.structs.replace(config, towers=towers, loop=loop)
    run = train_student(schema, log, directory / "run", changed, scenario=domains or "shopping")
    model = fold_domain(run.model, SCENARIOS.index("shopping")) if domains else run.model
    examples = encode_log(schema, log, directory / "rows", teacher=True, labels=False, scenario="shopping")
    return _export(schema, model.eval(), examples, directory)


def _export(schema: FeatureSchema, model: TwoTower, examples: Examples, directory: Path) -> Exported:
    graphs = directory / "graphs"
    graphs.mkdir()
    some = np.arange(0, len(examples.query), 7)
    export_two_tower(model, graphs, ParityRows(query=examples.query.take(some), ads=examples.ad.take(some)))
    engines = (OnnxRuntimeEngine(graphs / name, threads=1) for name in GRAPHS["two_tower"])
    query_engine, pin_engine = engines
    tables = read_tensors(graphs / WEIGHTS_FILE)
    served = TwoTowerServing(schema, tables, query_engine=query_engine, pin_engine=pin_engine)
    return Exported(model, graphs, served, examples)


@torch.no_grad()
def _embeddings(model: TwoTower, examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    sides = ((torch.tensor(side.ids), torch.tensor(side.floats)) for side in (examples.query, examples.ad))
    return model.embed(*sides)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def test_scores_of_the_graphs_equal_the_trained_module_on_every_row(exported: Exported) -> None:
    expected = _sigmoid(exported.logits())
    assert expected.shape[1] > SURVIVORS
    assert expected.std(axis=(0, 1)).min() > 0.005, "a student that has learned nothing shows nothing"
    np.testing.assert_allclose(_sigmoid(exported.served_logits(np.float32)), expected, rtol=0, atol=SCORE_TOLERANCE)


def test_the_survivors_of_every_request_are_the_same_but_for_ties(exported: Exported) -> None:
    expected, got = _sigmoid(exported.logits()), _sigmoid(exported.served_logits(np.float32))
    for by_module, by_graph in zip(expected.transpose(0, 2, 1), got.transpose(0, 2, 1), strict=True):
        for module_scores, graph_scores in zip(by_module, by_graph, strict=True):
            ours = set(np.argsort(-graph_scores, kind="stable")[:SURVIVORS])
            theirs = np.argsort(-module_scores, kind="stable")[:SURVIVORS]
            last = module_scores[theirs[-1]]
            exchanged = np.array(sorted(ours ^ set(theirs)), np.int64)
            assert np.all(np.abs(module_scores[exchanged] - last) <= TIE)


def test_rare_events_keep_their_probabilities_in_half_precision(exported: Exported) -> None:
    """The student's own vectors, at the rates of rare events, through the layout of an fp16 index."""
    shift = RARE - exported.logits().mean((0, 1))  # [H], of the bias that the query tower folds in
    heads = exported.model.query_tower.heads
    trained = torch.stack([projection.bias[-1].detach() for projection in heads.projections])
    heads.set_prior(trained + torch.tensor(shift))
    try:
        exact = exported.logits()
    finally:
        heads.set_prior(trained)
    halved = exported.served_logits(np.float16, shift)
    assert np.all(np.abs(exact.mean((0, 1)) - RARE) < 0.01)
    assert np.abs(_sigmoid(halved) / _sigmoid(exact) - 1).max() < 0.01


@pytest.mark.parametrize("graph", GRAPHS["two_tower"])
def test_graphs_multiply_by_matrices_alone_and_look_nothing_up(exported: Exported, graph: str) -> None:
    proto = onnx.load(exported.graphs / graph).graph
    assert [node.name for node in proto.input] == ["flat"]
    assert {len(weight.dims) for weight in proto.initializer if np.prod(weight.dims) > 64} == {2}
    assert not {node.op_type for node in proto.node} & {"GatherElements", "GatherND", "Loop", "If", "TopK"}
