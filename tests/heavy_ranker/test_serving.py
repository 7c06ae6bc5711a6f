"""Serving equals the module whatever engine, whatever lengths, and however requests share a call."""

import copy

import numpy as np
import pytest
import torch

from contracts.encoding import Encoded
from contracts.errors import ArtifactError, ConfigError
from contracts.probability import sigmoid
from engines.buckets import spec_shapes
from engines.device_memory import DeviceMemory
from engines.gpu import Gpu
from engines.names import ENGINES, EXACT_ENGINE, engines_here, program_path
from engines.openvino_cpu import has_bf16
from engines.parity import BF16_GATE, FP32_GATE
from engines.protocol import EngineNotNowError
from engines.select import LEAST_GAIN
from engines.torch_cuda import TorchCudaEngine
from heavy_ranker.data import read_impressions
from heavy_ranker.export_graphs import with_gains_folded
from heavy_ranker.serving import HeavyServing
from heavy_ranker.serving_engines import (
    ADS_GRAPH,
    GPU_BUCKETS,
    REQUEST_GRAPH,
    VARIABLE_LENGTHS,
    gpu_lengths,
    open_on_gpu,
    typical_call,
)
from heavy_ranker.serving_rows import GroupedRows, similar_sizes
from modeling.batches import gather

GRAPHS = REQUEST_GRAPH, ADS_GRAPH


@pytest.fixture(scope="module")
def exact(bundle):
    return HeavyServing.load(bundle, threads=1)


@pytest.fixture(scope="module")
def impressions(run, log):
    return read_impressions(run.schema, log, run.path / "examples")


def scored(serving, query, ads, pair, request_index):
    return serving.score(serving.encode_request(query), ads, pair, request_index)


def some_rows(examples, counts):
    """Ads of several requests, as many as ``counts`` says for each, in a shuffled order."""
    rng = np.random.default_rng(0)
    index = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    pairs = rng.integers(len(examples), size=len(index))
    query = examples.query.take(np.arange(len(counts)))
    return query, examples.ad.take(examples.ad_row[pairs]), examples.pair.take(pairs), index


@pytest.mark.parametrize("name", ["openvino_fp32", "openvino_bf16"])
def test_every_engine_keeps_its_gate(bundle, name):
    if name == "openvino_bf16" and not has_bf16():
        pytest.skip("this CPU has no BF16")
    serving = HeavyServing.load(bundle, threads=1, engine=name)
    gate = FP32_GATE if name == "openvino_fp32" else BF16_GATE
    assert serving.engine == name
    assert serving.check_parity(bundle.tensors("parity.safetensors"))["probabilities"] <= gate.tolerance


def test_the_default_engine_is_exact_and_the_same_on_every_machine(exact):
    assert exact.engine == EXACT_ENGINE == "onnxruntime_cpu"
    assert exact.trials == ()


def test_auto_serves_the_fastest_that_passes_and_tells_what_the_others_did(bundle):
    serving = HeavyServing.load(bundle, threads=1, engine="auto")
    assert [trial.name for trial in serving.trials] == list(engines_here())
    chosen = next(trial for trial in serving.trials if trial.status == "serves")
    assert chosen.name == serving.engine
    assert chosen.ms <= LEAST_GAIN**2 * min(trial.ms for trial in serving.trials if trial.ms is not None)
    serving.check_parity(bundle.tensors("parity.safetensors"))


def test_an_engine_that_exceeds_its_gate_is_refused(bundle, monkeypatch):
    files = {name: dict(bundle.tensors(name)) for name in ("weights.safetensors", "parity.safetensors")}
    parity = files["parity.safetensors"]
    parity["out.probabilities"] = parity["out.probabilities"] + np.float32(0.1)
    monkeypatch.setattr(type(bundle), "tensors", lambda self, name="weights.safetensors": files[name])
    with pytest.raises(ArtifactError, match=r"onnxruntime_cpu refused: .*allowed 1e-05"):
        HeavyServing.load(bundle, threads=1, engine="auto")


def test_an_unknown_engine_is_named(bundle):
    with pytest.raises(ConfigError, match=r"engine: expected auto or one of onnxruntime_cpu, .*, got 'fast'"):
        HeavyServing.load(bundle, engine="fast")


def test_gpu_engines_are_candidates_only_where_a_gpu_is(monkeypatch, tmp_path):
    monkeypatch.setattr("engines.names.NVIDIA_DEVICES", (tmp_path / "absent",))
    assert engines_here() == ENGINES[:3]
    (tmp_path / "absent").touch()
    assert engines_here() == ENGINES


def test_a_typical_call_is_one_request(bundle, exact):
    inputs = typical_call(bundle.tensors("parity.safetensors"))
    assert exact.run(inputs)["probabilities"].shape == (100, 3)


def test_a_bundle_holds_a_program_beside_each_graph(bundle):
    for graph in ("request.onnx", "ads.onnx"):
        assert program_path(bundle.path / graph).name in bundle.manifest.files


def test_padding_cut_off_changes_nothing(bundle, exact, impressions):
    """The log's histories of clicks are shorter than their length of 5: with buckets of 1 they are cut."""
    query, ads, pair, index = some_rows(impressions, [3, 3])
    assert bundle.manifest.dims[VARIABLE_LENGTHS] == 1
    ids = query.ids.copy()
    for sequence in exact.query_encoder.layout.sequences:
        for field in sequence.fields:
            ids[:, field.start + 1 : field.start + field.width] = 0
    short = Encoded(ids, query.floats)
    whole = HeavyServing(
        bundle.schema, bundle.tensors(), request_engine=exact._request_engine, ads_engine=exact._ads_engine
    )
    cut = HeavyServing(
        bundle.schema,
        bundle.tensors(),
        request_engine=exact._request_engine,
        ads_engine=exact._ads_engine,
        length_buckets=(1, 2),
    )
    state = cut.encode_request(short)
    assert state.tensors["layer0.clicks.penalty"].shape == (2, 1)
    assert whole.encode_request(short).tensors["layer0.clicks.penalty"].shape == (2, 5)
    logits = cut.score(state, ads, pair, index)
    np.testing.assert_allclose(logits, scored(whole, short, ads, pair, index), atol=1e-5)


def test_requests_without_any_history_are_scored(exact, impressions):
    query, ads, pair, index = some_rows(impressions, [2, 1])
    ids = query.ids.copy()
    for sequence in exact.query_encoder.layout.sequences:
        for field in sequence.fields:
            ids[:, field.start : field.start + field.width] = 0
    assert np.isfinite(scored(exact, Encoded(ids, query.floats), ads, pair, index)).all()


@pytest.mark.parametrize("counts", [[5], [1, 1, 1], [40, 0, 1, 39], [0, 3], [200, 2, 3, 180]])
def test_requests_of_any_sizes_equal_one_call_each(exact, impressions, counts):
    query, ads, pair, index = some_rows(impressions, counts)
    together = scored(exact, query, ads, pair, index)
    for request, count in enumerate(counts):
        at = np.flatnonzero(index == request)
        if count:
            one = query.take(np.array([request]))
            alone = scored(exact, one, ads.take(at), pair.take(at), np.zeros(count, np.int64))
            np.testing.assert_allclose(sigmoid(together[at]), sigmoid(alone), atol=1e-5)


def test_no_rows_give_no_logits(exact, impressions):
    query, ads, pair, index = some_rows(impressions, [0, 0])
    assert scored(exact, query, ads, pair, index).shape == (0, 3)


def test_padding_stays_below_its_limit_and_every_request_is_in_one_set():
    rng = np.random.default_rng(0)
    for _ in range(50):
        counts = rng.integers(0, rng.integers(2, 400), size=rng.integers(1, 40))
        sets = similar_sizes(counts)
        assert sorted(np.concatenate([*sets, np.empty(0, int)]).tolist()) == np.flatnonzero(counts).tolist()
        for requests in sets:
            rows = counts[requests].sum()
            assert counts[requests].max() * len(requests) - rows <= max(0.25 * rows, 32)


def test_widths_are_padded_to_buckets():
    layout = GroupedRows(np.array([0, 1, 1]), 2, widths=(4, 8))
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert layout.group(rows).shape == (2, 4, 2)
    np.testing.assert_array_equal(layout.ungroup(layout.group(rows)), rows)


def test_gains_folded_into_weights_change_nothing(run, impressions, randomised):
    model = copy.deepcopy(run.model)
    randomised(model.ranker)
    batch = gather(impressions, np.arange(50))
    with torch.no_grad():
        before = model(batch.sides(), batch.request_index, batch.ad_index)
        model.ranker = with_gains_folded(model.ranker)
        after = model(batch.sides(), batch.request_index, batch.ad_index)
    gains = [value for name, value in model.ranker.named_parameters() if "mixer" in name and name.endswith("gain")]
    assert gains
    assert all(bool((gain == 1).all()) for gain in gains)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_fewer_ads_than_prepared_for_are_filled_up(bundle, exact, impressions):
    prepared = HeavyServing.load(bundle, threads=2, engine="openvino_fp32", prepared=(2, 40))
    for count in (1, 2, 3, 40, 41):
        given = some_rows(impressions, [count])
        np.testing.assert_allclose(scored(prepared, *given), scored(exact, *given), atol=1e-4)


def test_the_programs_of_a_bundle_keep_parity_in_the_buckets_of_a_gpu(bundle):
    """On the CPU, without captures; the parity rows are of more requests than the largest bucket holds."""
    request, ads = (
        open_on_gpu(bundle, bundle.file(graph), "torch_cuda", precision="fp32", gpu=Gpu(device="cpu"))
        for graph in (REQUEST_GRAPH, ADS_GRAPH)
    )
    serving = HeavyServing(bundle.schema, bundle.tensors(), request_engine=request, ads_engine=ads)
    tensors = bundle.tensors("parity.safetensors")
    assert len(tensors["in.query_ids"]) > 4
    assert serving.check_parity(tensors)["probabilities"] <= FP32_GATE.tolerance


def test_short_histories_meet_only_shapes_that_a_gpu_prepared(bundle, exact, impressions, monkeypatch):
    """Sequences are cut to few lengths; every call then has one of the shapes for which a graph is captured."""
    monkeypatch.setattr("heavy_ranker.serving_engines.GPU_LENGTHS", (1, 3))
    met, run = [], TorchCudaEngine.run

    def noted(engine, inputs):
        met.append((engine, {name: array.shape for name, array in inputs.items()}))
        return run(engine, inputs)

    monkeypatch.setattr(TorchCudaEngine, "run", noted)
    gpu = Gpu(device="cpu")
    engines = [open_on_gpu(bundle, bundle.file(g), "torch_cuda", precision="fp32", gpu=gpu) for g in GRAPHS]
    serving = HeavyServing(
        bundle.schema,
        bundle.tensors(),
        request_engine=engines[0],
        ads_engine=engines[1],
        length_buckets=gpu_lengths(bundle),
    )
    lengths = {}
    for events in (0, 1, 2, 5):
        query, ads, pair, index = some_rows(impressions, [3, 70])
        ids = query.ids.copy()
        for sequence in exact.query_encoder.layout.sequences:
            for field in sequence.fields:
                ids[:, field.start + events : field.start + field.width] = 0
        given = Encoded(ids, query.floats), ads, pair, index
        np.testing.assert_allclose(scored(serving, *given), scored(exact, *given), atol=1e-4)
        lengths[events] = sorted(shape[1] for name, shape in met[-1][1].items() if name.endswith(".penalty"))
    assert lengths[1] != lengths[5]
    sizes = {f"{sequence.name}_length": sequence.max_length for sequence in exact.query_encoder.layout.sequences}
    buckets = GPU_BUCKETS | {name: (*(size for size in (1, 3) if size < whole), whole) for name, whole in sizes.items()}
    for engine, shapes in met:
        assert shapes in spec_shapes(engine.input_specs, buckets)


def test_an_engine_for_a_gpu_is_counted_in_its_budget(bundle):
    memory = DeviceMemory(1 << 30)
    serving = HeavyServing.load(bundle, threads=1, engine="torch_cuda", gpu=Gpu(device="cpu", memory=memory))
    programs = [program_path(bundle.file(graph)).stat().st_size for graph in GRAPHS]
    assert memory.held()["torch_cuda"] >= sum(programs)
    assert serving.check_parity(bundle.tensors("parity.safetensors"))["probabilities"] <= BF16_GATE.tolerance
    with pytest.raises(EngineNotNowError, match="torch_cuda needs 1 MiB of the device, 0 MiB of 1 MiB are held"):
        HeavyServing.load(bundle, engine="torch_cuda", gpu=Gpu(device="cpu", memory=DeviceMemory(100)))
    del serving
    assert memory.held() == {}
