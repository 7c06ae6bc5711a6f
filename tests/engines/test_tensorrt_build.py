"""The builder, with TensorRT for RTX: graphs parse, profiles are those asked for, plans serialise. Nothing is run."""

import sys

import onnx
import pytest
from onnx import TensorProto, helper

from contracts.errors import AdsieveError, ArtifactError
from engines import tensorrt_build
from engines.tensorrt_build import build_plan, cached_plan, import_tensorrt, plan_key

rtx = pytest.importorskip("tensorrt_rtx", reason="needs pip install tensorrt-rtx")

SHAPES = [{"x": (rows, length, 16), "mask": (rows, length)} for rows in (64, 4) for length in (8, 16)]
SM86 = "sm86"


def network_of(path):
    builder = rtx.Builder(rtx.Logger(rtx.Logger.ERROR))
    return builder, tensorrt_build._parsed(rtx, builder, path)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_plan_serialises(deep_graph, precision):
    plan = build_plan(rtx, deep_graph, shapes=SHAPES, precision=precision, architecture=SM86)
    assert len(plan) > 1000


def test_each_bucket_has_its_profile(deep_graph):
    builder, network = network_of(deep_graph)
    for bucket in SHAPES:
        profile = tensorrt_build._profile(builder, network, bucket)
        for name, shape in bucket.items():
            assert [tuple(dims) for dims in profile.get_shape(name)] == [shape] * 3
    with pytest.raises(ValueError, match=r"shapes must be given for inputs \['mask', 'x'\], got \['x'\]"):
        tensorrt_build._profile(builder, network, {"x": (1, 1, 16)})


def test_products_are_in_bf16_and_nothing_else_is(deep_graph):
    _, network = network_of(deep_graph)
    names = [network.get_output(i).name for i in range(network.num_outputs)]
    tensorrt_build._multiply_in_bf16(rtx, network)
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    products = [layer for layer in layers if layer.type == rtx.LayerType.MATRIX_MULTIPLY]
    assert len(products) == 5
    for product in products:
        assert [product.get_input(i).dtype for i in range(2)] == [rtx.bfloat16] * 2
    for layer in layers:
        if layer.type not in (rtx.LayerType.MATRIX_MULTIPLY, rtx.LayerType.CAST):
            assert rtx.bfloat16 not in [layer.get_input(i).dtype for i in range(layer.num_inputs)]
    assert sorted(network.get_output(i).name for i in range(network.num_outputs)) == sorted(names)
    assert {network.get_output(i).dtype for i in range(network.num_outputs)} == {rtx.float32}


def test_a_product_that_is_an_output_keeps_its_name_and_type(small_graph, tmp_path):
    model = onnx.load(small_graph)
    model.graph.output.append(helper.make_tensor_value_info("xw", TensorProto.FLOAT, ["rows", 4]))
    path = tmp_path / "output.onnx"
    onnx.save(model, path)
    _, network = network_of(path)
    tensorrt_build._multiply_in_bf16(rtx, network)
    outputs = {network.get_output(i).name: network.get_output(i).dtype for i in range(network.num_outputs)}
    assert outputs == {"y": rtx.float32, "z": rtx.float32, "xw": rtx.float32}
    assert build_plan(rtx, path, shapes=[{"x": (8, 3)}], precision="bf16", architecture=SM86)


def test_bf16_halves_the_weights(tmp_path):
    width = 512
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", width])],
        [helper.make_tensor("w", TensorProto.FLOAT, [width, width], [i % 7 * 0.1 for i in range(width * width)])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, tmp_path / "wide.onnx")
    sizes = {
        precision: len(
            build_plan(rtx, tmp_path / "wide.onnx", shapes=[{"x": (8, width)}], precision=precision, architecture=SM86)
        )
        for precision in ("fp32", "bf16")
    }
    assert sizes["bf16"] < 0.75 * sizes["fp32"]


def test_the_key_holds_all_that_a_plan_depends_on(deep_graph, small_graph):
    def key(path=deep_graph, **changes):
        settings = {"library": rtx, "architecture": "sm90", "precision": "bf16", "shapes": SHAPES} | changes
        return plan_key(path, **settings)

    class Newer:
        __name__, __version__ = "tensorrt_rtx", "99.0"

    others = [
        key(small_graph),
        key(architecture="sm86"),
        key(precision="fp32"),
        key(shapes=SHAPES[:2]),
        key(shapes=SHAPES[::-1]),
        key(library=Newer),
    ]
    assert key() == key(shapes=[dict(reversed(bucket.items())) for bucket in SHAPES])
    assert len({key(), *others}) == 1 + len(others)


def test_a_plan_is_built_once_and_appears_whole(deep_graph, tmp_path, monkeypatch):
    built = []

    def build(library, path, *, shapes, precision):
        built.append(path)
        return build_plan(library, path, shapes=shapes, precision=precision, architecture=SM86)

    monkeypatch.setattr(tensorrt_build, "build_plan", build)
    settings = {"shapes": SHAPES[:1], "precision": "bf16", "architecture": SM86}
    first = cached_plan(rtx, deep_graph, tmp_path / "plans", **settings)
    assert cached_plan(rtx, deep_graph, tmp_path / "plans", **settings) == first
    assert len(built) == 1
    assert [file.suffix for file in (tmp_path / "plans").iterdir()] == [".plan"]


def test_what_cannot_be_built_is_named(deep_graph, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(deep_graph.read_bytes()[:100])
    with pytest.raises(ArtifactError, match=r"broken\.onnx: TensorRT .* cannot parse this graph: "):
        build_plan(rtx, broken, shapes=SHAPES, precision="fp32")
    with pytest.raises(ArtifactError, match="no such file"):
        build_plan(rtx, tmp_path / "absent.onnx", shapes=SHAPES, precision="fp32")
    with pytest.raises(ValueError, match="at least one bucket"):
        build_plan(rtx, deep_graph, shapes=[], precision="fp32")


def test_without_tensorrt_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    assert import_tensorrt() is rtx
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(AdsieveError, match="TensorRT is not installed: pip install"):
        import_tensorrt()
