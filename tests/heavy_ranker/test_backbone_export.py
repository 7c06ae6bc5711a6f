"""Every backbone and encoder, exported untrained and compared with the module on rows of the log."""

import msgspec
import numpy as np
import pytest
import torch

from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.openvino_cpu import OpenVinoEngine
from engines.parity import FP32_GATE, check_parity
from heavy_ranker.data import read_impressions
from heavy_ranker.export import parity_tensors
from heavy_ranker.export_graphs import export_graphs, has_variable_lengths
from heavy_ranker.run import build_model
from heavy_ranker.serving import HeavyServing
from heavy_ranker.serving_engines import ADS_GRAPH, REQUEST_GRAPH
from modeling.batches import gather
from modeling.weights import model_weights

ENGINES = {"onnxruntime": OnnxRuntimeEngine, "openvino": OpenVinoEngine}
BACKBONES, ENCODERS = ("hyformer", "din_dcn", "masknet", "rankmixer"), ("swiglu", "transformer", "longer")
EACH = {
    f"{backbone}, {layers}, {encoder}": {"backbones": (backbone,), "num_layers": layers, "sequence_encoder": encoder}
    for backbone in BACKBONES
    for layers in (1, 2)
    for encoder in ENCODERS
}
SOME = {
    "request only": {"request_only": True, "query_source": "one_token", "sequence_encoder": "transformer"},
    "ensemble": {"backbones": BACKBONES[1:], "sequence_encoders": {"clicks": "longer"}},
    "bins, members and products": {"numeric_bins": 3, "members": 2, "product_heads": 2, "product_norm": True},
}


@pytest.fixture(scope="module")
def examples(schema, log, tmp_path_factory):
    return read_impressions(schema, log, tmp_path_factory.mktemp("examples"))


@pytest.mark.parametrize("changes", SOME.values(), ids=SOME.keys())
def test_graphs_equal_the_module_in_every_engine(schema, config, examples, randomised, tmp_path, changes):
    check_graphs(schema, config, examples, randomised, tmp_path, changes)


@pytest.mark.slow
@pytest.mark.parametrize("changes", EACH.values(), ids=EACH.keys())
def test_graphs_of_each_backbone_equal_the_module(schema, config, examples, randomised, tmp_path, changes):
    check_graphs(schema, config, examples, randomised, tmp_path, changes)


def check_graphs(schema, config, examples, randomised, directory, changes):
    """Export an untrained model and run the graphs in both engines, as serving does, on rows of many requests."""
    config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, longer_length=2, **changes))
    model = build_model(schema, config).eval()
    randomised(model.ranker)
    batch = gather(examples, np.arange(3, 200, 2))
    with torch.no_grad():
        sides = model.tables.forward_sides(batch.sides())
    variable_lengths = has_variable_lengths(config.model)
    flat = (sides["ad"].flat, sides["pair"].flat)
    export_graphs(model.ranker, sides["query"], *flat, directory, variable_lengths=variable_lengths)
    tables = {name: value.numpy() for name, value in model_weights(model).items()}
    parity = {name: value.numpy() for name, value in parity_tensors(model, batch).items()}
    assert np.ptp(parity["out.probabilities"]) > 0.01
    for engine in ENGINES.values():
        serving = HeavyServing(
            schema,
            tables,
            request_engine=engine(directory / REQUEST_GRAPH, threads=1),
            ads_engine=engine(directory / ADS_GRAPH, threads=1),
            length_buckets=(1, 2) if variable_lengths else (),
        )
        check_parity(serving.run, parity, tolerance=FP32_GATE.tolerance, source=serving.engine)
