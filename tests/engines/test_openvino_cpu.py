"""The OpenVINO engine equals ONNX Runtime in fp32, keeps results of earlier calls, and names what it refuses."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from contracts.errors import AdsieveError, ArtifactError, MismatchError
from engines import openvino_cpu
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.openvino_cpu import OpenVinoEngine, has_bf16

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def test_computes_what_onnx_runtime_computes(deep_graph, deep_inputs):
    engine = OpenVinoEngine(deep_graph, threads=1)
    expected = OnnxRuntimeEngine(deep_graph, threads=1).run(deep_inputs)
    computed = engine.run(deep_inputs)
    assert (engine.name, engine.inputs, engine.outputs) == ("openvino_fp32", ("x", "mask"), ("probabilities", "pooled"))
    assert computed.keys() == expected.keys()
    for name, values in expected.items():
        assert computed[name].dtype == np.float32
        np.testing.assert_allclose(computed[name], values, atol=1e-6)


def test_bf16_rounds_products_and_says_so(deep_graph, deep_inputs):
    if not has_bf16():
        with pytest.raises(AdsieveError, match="bf16 needs a CPU with BF16"):
            OpenVinoEngine(deep_graph, threads=1, precision="bf16")
        pytest.skip("this CPU has no BF16")
    engine = OpenVinoEngine(deep_graph, threads=1, precision="bf16")
    expected = OpenVinoEngine(deep_graph, threads=1).run(deep_inputs)["probabilities"]
    computed = engine.run(deep_inputs)["probabilities"]
    assert engine.name == "openvino_bf16"
    assert computed.dtype == np.float32
    assert 1e-5 < np.abs(computed - expected).max() < 2e-2


def test_a_cpu_without_bf16_is_named(small_graph, monkeypatch):
    monkeypatch.setattr(openvino_cpu, "has_bf16", lambda: False)
    with pytest.raises(AdsieveError, match="precision bf16 needs a CPU with BF16 instructions"):
        OpenVinoEngine(small_graph, threads=1, precision="bf16")


@pytest.mark.parametrize("buckets", [None, {"rows": (5,)}], ids=["any size", "sizes known"])
def test_results_outlive_later_calls_and_inputs(small_graph, buckets):
    engine = OpenVinoEngine(small_graph, threads=1, buckets=buckets)
    x = X.copy()
    first = engine.run({"x": x})
    kept = {name: values.copy() for name, values in first.items()}
    x += 100
    engine.run({"x": x})
    for name, values in kept.items():
        np.testing.assert_array_equal(first[name], values)


@pytest.mark.parametrize("buckets", [None, {"rows": range(1, 6)}], ids=["any size", "sizes known"])
@pytest.mark.parametrize("streams", [1, 2])
def test_runs_from_several_threads_at_once(small_graph, streams, buckets):
    engine = OpenVinoEngine(small_graph, threads=2, streams=streams, buckets=buckets)
    inputs = [np.full((1 + value % 7, 3), value, np.float32) for value in range(80)]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda x: engine.run({"x": x})["z"], inputs))
    for x, z in zip(inputs, outputs, strict=True):
        np.testing.assert_array_equal(z, x + 1)


def test_sizes_compiled_for_and_others_give_the_same(deep_graph, deep_inputs):
    reference = OnnxRuntimeEngine(deep_graph, threads=1)
    engine = OpenVinoEngine(deep_graph, threads=1, buckets={"rows": (1, 20), "length": (10,)})
    for rows, length in ((20, 10), (1, 10), (20, 9), (37, 10), (20, 10), (0, 10)):
        inputs = {name: np.ascontiguousarray(array[:rows, :length]) for name, array in deep_inputs.items()}
        expected = reference.run(inputs)
        for name, values in engine.run(inputs).items():
            np.testing.assert_allclose(values, expected[name], atol=1e-6)
    with pytest.raises(ValueError, match="no buckets for length"):
        OpenVinoEngine(deep_graph, threads=1, buckets={"rows": (1,)})


def test_a_call_of_a_known_size_reads_any_memory_and_refuses_other_types(small_graph):
    engine = OpenVinoEngine(small_graph, threads=1, buckets={"rows": (5,)})
    fixed, wide = X.copy(), np.repeat(X, 2, axis=1)
    fixed.flags.writeable = False
    for x in (fixed, wide[:, ::2], np.asfortranarray(X)):
        np.testing.assert_array_equal(engine.run({"x": x})["z"], X + 1)
    with pytest.raises(MismatchError, match="input x takes float32, got float64"):
        engine.run({"x": X.astype(np.float64)})
    np.testing.assert_array_equal(engine.run({"x": X})["z"], X + 1)


@pytest.mark.parametrize("change", [lambda x: x[::2], lambda x: np.asfortranarray(x), lambda x: x[:0]])
def test_any_memory_layout_is_read_right(small_graph, change):
    x = change(X.copy())
    x.flags.writeable = False
    np.testing.assert_array_equal(OpenVinoEngine(small_graph, threads=1).run({"x": x})["z"], x + 1)


def test_refuses_other_inputs(small_graph):
    engine = OpenVinoEngine(small_graph, threads=1)
    with pytest.raises(MismatchError, match=r"takes inputs \['x'\], got \['x', 'y'\]"):
        engine.run({"x": X, "y": X})
    with pytest.raises(MismatchError, match="input x takes float32, got float64"):
        engine.run({"x": X.astype(np.float64)})
    with pytest.raises(MismatchError, match=r"refuses inputs of shapes \{'x': \(3, 5\)\}"):
        engine.run({"x": np.ascontiguousarray(X.T)})
    np.testing.assert_array_equal(engine.run({"x": X})["z"], X + 1)  # and goes on serving


def test_refuses_what_is_not_a_graph(tmp_path, small_graph):
    truncated = tmp_path / "truncated.onnx"
    truncated.write_bytes(small_graph.read_bytes()[:40])
    with pytest.raises(ArtifactError, match=r"truncated\.onnx: OpenVINO cannot load"):
        OpenVinoEngine(truncated, threads=1)
    with pytest.raises(ArtifactError, match="no such file"):
        OpenVinoEngine(tmp_path / "absent.onnx", threads=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "1 <= streams <= threads, got 1 and 0"),
        ({"threads": 1, "streams": 2}, "1 <= streams <= threads, got 2 and 1"),
        ({"threads": 1, "precision": "fp16"}, "precision must be 'fp32' or 'bf16', got 'fp16'"),
    ],
)
def test_refuses_settings_out_of_range(small_graph, options, message):
    with pytest.raises(ValueError, match=message):
        OpenVinoEngine(small_graph, **options)


@pytest.mark.parametrize("buckets", [None, {"rows": (40, 41)}], ids=["any size", "sizes known"])
@pytest.mark.parametrize("rows", [1, 31, 32, 40, 41, 100])
def test_a_divided_call_equals_a_whole_one(small_graph, buckets, rows):
    x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
    whole = OpenVinoEngine(small_graph, threads=2).run({"x": x})
    engine = OpenVinoEngine(small_graph, threads=2, streams=2, divide="rows", buckets=buckets)
    for _ in range(2):
        for name, values in engine.run({"x": x}).items():
            np.testing.assert_array_equal(values, whole[name])


def test_divided_calls_from_several_threads(small_graph):
    engine = OpenVinoEngine(small_graph, threads=2, streams=2, divide="rows", buckets={"rows": (64,)})
    inputs = [np.full((60 + value % 7, 3), value, np.float32) for value in range(60)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: engine.run({"x": x})["z"], inputs))
    for x, z in zip(inputs, results, strict=True):
        np.testing.assert_array_equal(z, x + 1)


def test_a_call_that_fails_leaves_the_engine_usable(small_graph):
    engine = OpenVinoEngine(small_graph, threads=2, streams=2, divide="rows")
    with pytest.raises(MismatchError, match="the graph refuses inputs of shapes"):
        engine.run({"x": np.ones((64, 5), np.float32)})
    np.testing.assert_array_equal(engine.run({"x": np.ones((64, 3), np.float32)})["z"], np.full((64, 3), 2.0))


def test_a_graph_joined_behind_another_equals_one_after_the_other(deep_graph, deep_inputs, second_graph):
    pooled = OpenVinoEngine(deep_graph, threads=1).run(deep_inputs)["pooled"]
    rows = len(pooled)
    scale = np.arange(1, rows + 1, dtype=np.float32).reshape(rows, 1)
    expected = OpenVinoEngine(second_graph, threads=1).run({"pooled": pooled, "scale": scale})
    joined = OpenVinoEngine(second_graph, threads=1, after=deep_graph)
    assert (joined.inputs, joined.outputs) == (("x", "mask", "scale"), ("scaled",))
    computed = joined.run(deep_inputs | {"scale": scale})
    np.testing.assert_allclose(computed["scaled"], expected["scaled"], atol=1e-6)


def request_and_ads(count, value):
    ad = np.random.default_rng(count).normal(size=(1, count, 16)).astype(np.float32)
    return {"request": np.full((1, 1, 16), value, np.float32), "ad": ad}


@pytest.mark.parametrize("count", [3, 33, 40, 41, 100])  # one part, two that differ in size, two alike, others
def test_a_first_graph_that_runs_once_gives_the_same(request_graph, ads_graph, count):
    sizes = {"requests": (1,), "ads": (3, 33, 40, 41)}
    options = {"threads": 2, "streams": 2, "divide": "ads", "after": request_graph, "buckets": sizes}
    engine = OpenVinoEngine(ads_graph, first_once=True, **options)
    for value in (0.5, -1.0):
        inputs = request_and_ads(count, value)
        answer = engine.run(inputs)["answer"]
        np.testing.assert_allclose(answer, inputs["ad"] * np.exp(value), rtol=1e-5)
    with pytest.raises(MismatchError, match=r"input ad takes float32, got float64"):
        engine.run(inputs | {"ad": inputs["ad"].astype(np.float64)})


def test_a_first_graph_that_runs_once_serves_several_threads(request_graph, ads_graph):
    sizes = {"requests": (1,), "ads": (64,)}
    options = {"threads": 2, "streams": 2, "divide": "ads", "after": request_graph, "buckets": sizes}
    engine = OpenVinoEngine(ads_graph, first_once=True, **options)
    calls = [request_and_ads(63 + at % 2, at / 50) for at in range(60)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda inputs: engine.run(inputs)["answer"], calls))
    for at, (inputs, answer) in enumerate(zip(calls, answers, strict=True)):
        np.testing.assert_allclose(answer, inputs["ad"] * np.exp(at / 50), rtol=1e-5)


@pytest.mark.parametrize("divide", [None, "rows"])
def test_a_first_graph_that_would_be_divided_cannot_run_once(deep_graph, second_graph, divide):
    with pytest.raises(ValueError, match=r"first_once: nothing of deep\.onnx may have the size that is divided"):
        OpenVinoEngine(second_graph, threads=2, streams=2, divide=divide, after=deep_graph, first_once=True)


def test_what_cannot_be_divided_is_refused(small_graph):
    with pytest.raises(ValueError, match=r"an input and every output of small\.onnx must have a size named 'ads'"):
        OpenVinoEngine(small_graph, threads=2, streams=2, divide="ads")
