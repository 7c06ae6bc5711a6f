"""Serving without torch: embeddings from engines, and logits from split embeddings, equal to the module's."""

import ast
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from contracts.errors import ArtifactError
from contracts.schema import FeatureSchema
from towers import query_engine, serving, tower_engine
from towers.serving import TwoTowerServing, score, split_pin_embedding
from towers.two_tower import TwoTower


class TorchEngine:
    """Runs a tower itself, as an engine."""

    name = "torch"

    def __init__(self, tower: torch.nn.Module) -> None:
        self._tower = tower

    @torch.no_grad()
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"embedding": self._tower(torch.from_numpy(inputs["flat"])).numpy()}


@pytest.fixture(scope="module")
def served(schema: FeatureSchema, model: TwoTower) -> TwoTowerServing:
    return TwoTowerServing(
        schema,
        model.tables.export_tables(),
        query_engine=TorchEngine(model.query_tower),
        pin_engine=TorchEngine(model.pin_tower),
    )


@pytest.fixture(scope="module")
def logits(model: TwoTower, rows: Any) -> np.ndarray:
    """The module's logits of all pairs, [R, A, H]."""
    requests, ads = torch.arange(5).repeat_interleave(7), torch.arange(7).repeat(5)
    with torch.no_grad():
        return model(rows.tensors("query"), rows.tensors("ad"), requests, ads).reshape(5, 7, 2).numpy()


def test_scores_equal_the_module(served: TwoTowerServing, rows: Any, logits: np.ndarray) -> None:
    query, pins = served.embed_query(rows.query), served.embed_ads(rows.ads)
    vectors, bias = split_pin_embedding(pins)
    got = np.stack([score(embedding, vectors, bias) for embedding in query])
    np.testing.assert_allclose(got, logits, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.einsum("rhd,ahd->rah", query, pins), logits, rtol=1e-5, atol=1e-5)


def test_half_precision_vectors_keep_probabilities_within_a_percent_at_rare_events() -> None:
    rng = np.random.default_rng(0)
    query = np.concatenate([rng.normal(size=(2, 32)) / 32**0.5, np.ones((2, 1)), np.full((2, 1), -9.0)], 1)
    vectors, bias = rng.normal(size=(500, 64)), rng.normal(size=(500, 2)).astype(np.float32)
    exact = score(query.astype(np.float32), vectors.astype(np.float32), bias)
    rounded = score(query.astype(np.float32), vectors.astype(np.float16), bias)
    relative = np.abs(1 / (1 + np.exp(-rounded)) * (1 + np.exp(-exact)) - 1)
    assert exact.mean() < -8
    assert relative.max() < 0.01


def test_split_layout_is_head_major() -> None:
    embedding = np.arange(2 * 3 * 6, dtype=np.float32).reshape(2, 3, 6)
    vectors, bias = split_pin_embedding(embedding)
    np.testing.assert_array_equal(vectors[1], np.concatenate([embedding[1, head, :4] for head in range(3)]))
    np.testing.assert_array_equal(bias, embedding[:, :, 4])
    assert vectors.flags.c_contiguous
    assert bias.flags.c_contiguous


def test_no_candidates_give_no_scores() -> None:
    assert score(np.ones((2, 6), np.float32), np.ones((0, 8), np.float16), np.ones((0, 2), np.float32)).shape == (0, 2)


def test_parity_names_the_output_that_is_off(served: TwoTowerServing, rows: Any) -> None:
    saved = {
        "in.query_ids": rows.query.ids,
        "in.query_floats": rows.query.floats,
        "in.ad_ids": rows.ads.ids,
        "in.ad_floats": rows.ads.floats,
        "out.query_embedding": served.embed_query(rows.query),
        "out.pin_embedding": served.embed_ads(rows.ads),
    }
    assert served.check_parity(saved) == {"query_embedding": 0.0, "pin_embedding": 0.0}
    off = {**saved, "out.pin_embedding": saved["out.pin_embedding"] + 0.01}
    with pytest.raises(ArtifactError, match="output pin_embedding is"):
        served.check_parity(off)


@pytest.mark.parametrize("module", [serving, query_engine, tower_engine])
def test_serving_imports_neither_torch_nor_model_code(module: ModuleType) -> None:
    tree = ast.parse(Path(module.__file__ or "").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {name.split(".")[0] for name in modules if name} - set(sys.stdlib_module_names)
    assert own - {"numpy"} <= {"contracts", "engines", "towers"}
    assert {name for name in modules if name and name.startswith("towers")} <= {
        "towers.query_engine",
        "towers.tower_engine",
    }
