"""Exported graphs equal the trained module on real encoded rows, one at a time and all at once."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch

from contracts.bundle import Bundle, seal_bundle
from contracts.errors import ArtifactError
from contracts.schema import FeatureSchema
from contracts.tensors import read_tensors
from engines.buckets import spec_shapes
from engines.device_memory import DeviceMemory
from engines.gpu import Gpu
from engines.names import program_path
from engines.onnxruntime_cpu import OnnxRuntimeEngine, onnx_specs
from engines.parity import BF16_GATE
from engines.tensorrt_build import build_plan
from engines.torch_cuda import open_torch_cuda
from towers.export import ParityRows, export_two_tower
from towers.query_engine import GPU_ROWS
from towers.serving import TwoTowerServing, score, split_pin_embedding
from towers.tower_engine import pair_probabilities
from towers.two_tower import TwoTower

SCORE_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, schema: FeatureSchema, model: TwoTower, rows: Any) -> Bundle:
    return seal_bundle(
        tmp_path_factory.mktemp("sealed") / "bundle",
        kind="two_tower",
        scenario="shopping",
        schema=schema,
        config={},
        dims={"num_heads": 2, "head_dim": 6},
        watermark="2025-02-19T21:20:00+00:00",
        fill=lambda directory: export_two_tower(model, directory, ParityRows(query=rows.query, ads=rows.ads)),
    )


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def test_served_scores_equal_the_trained_module_on_every_pair(bundle: Bundle, model: TwoTower, rows: Any) -> None:
    requests, ads = torch.arange(5).repeat_interleave(7), torch.arange(7).repeat(5)
    with torch.no_grad():
        logits = model(rows.tensors("query"), rows.tensors("ad"), requests, ads).reshape(5, 7, 2).numpy()
    served = TwoTowerServing.load(bundle, threads=1)
    vectors, bias = split_pin_embedding(served.embed_ads(rows.ads))
    got = np.stack([score(embedding, vectors, bias) for embedding in served.embed_query(rows.query)])
    np.testing.assert_allclose(_sigmoid(got), _sigmoid(logits), rtol=0, atol=SCORE_TOLERANCE)


def test_one_row_at_a_time_equals_all_at_once(bundle: Bundle, rows: Any) -> None:
    served = TwoTowerServing.load(bundle, threads=1)
    for embed, encoded in ((served.embed_query, rows.query), (served.embed_ads, rows.ads)):
        together = embed(encoded)
        alone = np.concatenate([embed(encoded.take(np.array([row]))) for row in range(len(encoded))])
        np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)


def test_parity_file_is_the_modules_own_output(bundle: Bundle, model: TwoTower, rows: Any) -> None:
    saved = bundle.tensors("parity.safetensors")
    with torch.no_grad():
        query, pin = model.embed(rows.tensors("query"), rows.tensors("ad"))
    np.testing.assert_array_equal(saved["out.query_embedding"], query.numpy())
    np.testing.assert_array_equal(saved["out.pin_embedding"], pin.numpy())
    errors = TwoTowerServing.load(bundle, threads=1).check_parity(saved)
    assert set(errors) == {"query_embedding", "pin_embedding"}


def test_weights_hold_every_parameter(bundle: Bundle, model: TwoTower) -> None:
    saved = bundle.tensors()
    for prefix, tower in (("query_tower", model.query_tower), ("pin_tower", model.pin_tower)):
        for name, value in tower.state_dict().items():
            np.testing.assert_array_equal(saved[f"{prefix}.{name}"], value.numpy())
    for name, table in model.tables.export_tables().items():
        np.testing.assert_array_equal(saved[name], table)


@pytest.mark.parametrize("graph", ["query_tower.onnx", "pin_tower.onnx"])
def test_graph_takes_any_number_of_rows_and_holds_no_lookup(bundle: Bundle, graph: str) -> None:
    proto = onnx.load(bundle.file(graph)).graph
    assert [node.name for node in proto.input] == ["flat"]
    assert [node.name for node in proto.output] == ["embedding"]
    assert proto.input[0].type.tensor_type.shape.dim[0].dim_param == "rows"
    assert not {node.op_type for node in proto.node} & {"Loop", "SequenceAt", "GatherElements", "If"}


def test_an_altered_weight_fails_the_parity_check(bundle: Bundle, rows: Any) -> None:
    tables = {name: np.array(values) for name, values in read_tensors(bundle.file("weights.safetensors")).items()}
    tables["tables.ad"][3:] += 0.5
    served = TwoTowerServing.load(bundle, threads=1)
    altered = TwoTowerServing(bundle.schema, tables, query_engine=served._query_engine, pin_engine=served._pin_engine)
    with pytest.raises(ArtifactError, match="parity.safetensors: output pin_embedding is"):
        altered.check_parity(bundle.tensors("parity.safetensors"))


def test_programs_beside_the_graphs_serve_both_towers(bundle: Bundle, rows: Any) -> None:
    """As on a GPU, but for captures: the query tower through its engine of choice, both towers in fp32 exactly."""
    exact, served = (TwoTowerServing.load(bundle, threads=1) for _ in range(2))
    memory = DeviceMemory(64 << 20)
    served.choose_query_engine(bundle, "torch_cuda", gpu=Gpu(device="cpu", memory=memory))
    assert served.engine == "torch_cuda"
    assert memory.held()["torch_cuda"] >= program_path(bundle.file("query_tower.onnx")).stat().st_size
    pins, wanted = exact.embed_ads(rows.ads), exact.embed_query(rows.query)
    found = pair_probabilities(served.embed_query(rows.query), pins)
    assert np.abs(found - pair_probabilities(wanted, pins)).max() <= BF16_GATE.tolerance
    for graph, flat in (
        ("query_tower.onnx", exact._query_lookup(rows.query.ids, rows.query.floats).flat),
        ("pin_tower.onnx", exact.ad_lookup(rows.ads.ids, rows.ads.floats).flat),
    ):
        program = open_torch_cuda(
            program_path(bundle.file(graph)), buckets={"rows": (1, 4)}, precision="fp32", gpu=Gpu(device="cpu")
        )
        expected = OnnxRuntimeEngine(bundle.file(graph), threads=1).run({"flat": flat})["embedding"]
        np.testing.assert_allclose(program.run({"flat": flat})["embedding"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_tensorrt_builds_the_query_tower_for_every_bucket(bundle: Bundle, precision: Any) -> None:
    """With TensorRT for RTX, which builds without a GPU. Nothing is run."""
    rtx = pytest.importorskip("tensorrt_rtx", reason="needs pip install tensorrt-rtx")
    graph = bundle.file("query_tower.onnx")
    shapes = spec_shapes(onnx_specs(graph)[0], {"rows": GPU_ROWS})
    assert [shape["flat"][0] for shape in shapes] == sorted(GPU_ROWS, reverse=True)
    plan = build_plan(rtx, graph, shapes=shapes, precision=precision, architecture="sm86")
    assert len(plan) > 1000
