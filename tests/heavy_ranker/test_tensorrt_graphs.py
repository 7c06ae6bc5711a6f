"""Both graphs of a heavy bundle parse and build, with TensorRT for RTX, which needs no GPU; nothing is run."""

import pytest

from engines.buckets import spec_shapes
from engines.onnxruntime_cpu import onnx_specs
from engines.tensorrt_build import build_plan
from heavy_ranker.serving_engines import ADS_GRAPH, LENGTH_SUFFIX, REQUEST_GRAPH

rtx = pytest.importorskip("tensorrt_rtx", reason="needs pip install tensorrt-rtx")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("graph", [REQUEST_GRAPH, ADS_GRAPH])
def test_a_plan_with_a_profile_for_every_bucket(bundle, graph, precision):
    inputs, _ = onnx_specs(bundle.file(graph))
    names = {name for spec in inputs for name in spec.axes.values()}
    assert names >= ({"requests", "ads"} if graph == ADS_GRAPH else {"requests"})
    cut = min(name for name in names if name.endswith(LENGTH_SUFFIX))  # one sequence has two lengths, the others one
    buckets = {name: {"requests": (1, 4), "ads": (32,), cut: (2, 5)}.get(name, (3,)) for name in names}
    shapes = spec_shapes(inputs, buckets)
    plan = build_plan(rtx, bundle.file(graph), shapes=shapes, precision=precision, architecture="sm86")
    assert len(shapes) == 4
    assert len(plan) > 10_000
