"""The fastest candidate within its gate serves; every other one is reported with its reason."""

import time

import numpy as np
import pytest

from contracts.errors import AdsieveError, ArtifactError
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.openvino_cpu import OpenVinoEngine, has_bf16
from engines.parity import BF16_GATE, FP32_GATE, ParityGate, measure_parity
from engines.select import GATES, Candidate, Trial, median_ms, select_engine

P = np.linspace(0.01, 0.9, 40, dtype=np.float32)[:, None]
SAVED = {"in.x": P, "out.p": P}


def candidate(name, run, gate=FP32_GATE):
    return Candidate(name=name, load=lambda: run, gate=gate)


def slow(inputs):
    time.sleep(0.002)
    return {"p": inputs["x"]}


def quick(inputs):
    return {"p": inputs["x"]}


def broken():
    raise ImportError("No module named 'tensorrt'")


def no_gpu():
    raise AdsieveError("torch_cuda needs a CUDA device")


def choose(candidates, **options):
    return select_engine(candidates, SAVED, run=lambda loaded: loaded, source="bundle", **options)


def test_the_fastest_that_passes_serves_and_all_are_reported():
    selection = choose(
        [
            Candidate(name="tensorrt", load=broken, gate=BF16_GATE),
            Candidate(name="torch_cuda", load=no_gpu, gate=BF16_GATE),
            candidate("off", lambda inputs: {"p": inputs["x"] + 0.01}),
            candidate("failing", lambda inputs: {"p": inputs["y"]}),
            candidate("slow", slow),
            candidate("quick", quick),
        ]
    )
    assert (selection.name, selection.loaded) == ("quick", quick)
    trials = {trial.name: trial for trial in selection.trials}
    assert [trial.status for trial in selection.trials] == [
        *("unavailable", "unavailable", "refused", "refused", "passed", "serves")
    ]
    assert trials["tensorrt"].reason == "ImportError: No module named 'tensorrt'"
    assert trials["torch_cuda"].reason == "torch_cuda needs a CUDA device"
    assert trials["off"].reason == "output p is 0.01 from the trained module, allowed 1e-05"
    assert trials["off"].error == pytest.approx(0.01, abs=1e-6)
    assert trials["off"].ms is None
    assert trials["failing"].reason == "KeyError: 'y'"
    assert (trials["quick"].error, trials["quick"].rank_correlation) == (0.0, 1.0)
    assert trials["quick"].ms < trials["slow"].ms


def test_none_passes_names_every_reason():
    with pytest.raises(ArtifactError) as raised:
        choose(
            [Candidate(name="torch_cuda", load=no_gpu, gate=BF16_GATE), candidate("off", lambda x: {"p": x["x"] * 2})]
        )
    message = str(raised.value)
    assert message.startswith(
        "bundle: no engine can serve: torch_cuda unavailable: torch_cuda needs a CUDA device; off"
    )
    assert "allowed 1e-05" in message
    with pytest.raises(ArtifactError, match="no engine can serve"):
        choose([])


def test_the_order_counts_where_the_gate_asks_for_it():
    """Errors within the tolerance of BF16 that shuffle what is close together."""
    close = {"in.x": P * 0.001, "out.p": P * 0.001}
    shuffled = np.random.default_rng(1).permutation(P) * 0.001
    parity = measure_parity(lambda inputs: {"p": shuffled}, close, source="s")
    assert parity.errors["p"] < BF16_GATE.tolerance
    assert "rank correlation" in BF16_GATE.refusal(parity)
    assert ParityGate(6e-3).refusal(parity) is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_never_passes(value):
    run = candidate("nan", lambda inputs: {"p": np.where(inputs["x"] > 0.5, value, inputs["x"])}, ParityGate(1e9, -1.0))
    with pytest.raises(ArtifactError, match="nan refused"):
        choose([run])


def test_timing_uses_the_inputs_it_is_given_and_ends_in_time():
    seen = []

    def run(inputs):
        seen.append(len(inputs["x"]))
        return {"p": inputs["x"]}

    choose([candidate("quick", run)], timed_inputs={"x": P[:3]})
    assert seen[0] == len(P)
    assert set(seen[1:]) == {3}
    calls = []
    median_ms(lambda: calls.append(time.sleep(0.001)), seconds=0.0)
    assert len(calls) == 3  # two to warm up, one timed


def test_a_loser_is_let_go_before_the_next_loads():
    alive = []

    class Engine:
        def __init__(self, name):
            alive.append(name)
            self.name, self.run = name, slow if name != "b" else quick

        def __del__(self):
            alive.remove(self.name)

    most = []

    def load(name):
        engine = Engine(name)
        most.append(len(alive))
        return engine

    candidates = [Candidate(name=name, load=lambda name=name: load(name), gate=FP32_GATE) for name in "abcd"]
    selection = select_engine(candidates, SAVED, run=lambda engine: engine.run, source="bundle")
    assert selection.name == "b"
    assert (max(most), alive) == (2, ["b"])


def test_real_engines_on_a_real_graph(deep_graph, deep_inputs):
    expected = OnnxRuntimeEngine(deep_graph, threads=1).run(deep_inputs)["probabilities"]
    tensors = {f"in.{name}": array for name, array in deep_inputs.items()} | {"out.probabilities": expected}
    loads = {
        "onnxruntime_cpu": lambda: OnnxRuntimeEngine(deep_graph, threads=1),
        "openvino_fp32": lambda: OpenVinoEngine(deep_graph, threads=1),
        "openvino_bf16": lambda: OpenVinoEngine(deep_graph, threads=1, precision="bf16"),
    }
    selection = select_engine(
        [Candidate(name=name, load=load, gate=GATES[name]) for name, load in loads.items()],
        tensors,
        run=lambda engine: engine.run,
        source=str(deep_graph),
    )
    assert selection.loaded.name == selection.name
    by_name = {trial.name: trial for trial in selection.trials}
    assert by_name["openvino_fp32"].error <= 1e-5
    assert by_name["openvino_bf16"].status == "unavailable" if not has_bf16() else by_name["openvino_bf16"].error > 1e-5


def test_names_are_distinct_and_a_trial_reads_as_a_line():
    with pytest.raises(ValueError, match="distinct names"):
        choose([candidate("a", quick), candidate("a", quick)])
    trial = Trial(name="openvino_bf16", status="serves", error=0.0021, rank_correlation=0.99981, ms=2.5)
    assert str(trial) == "openvino_bf16 serves: error 0.0021, rank correlation 0.99981, 2.50 ms"


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ([1.0, 0.95, 0.92], "a"),  # noise
        ([1.0, 0.95, 0.90], "c"),
        ([1.0, 0.90, 0.85], "b"),
        ([1.0, 0.5, 0.4], "c"),
        ([2.0, 2.0, 2.0], "a"),
    ],
)
def test_a_preferred_engine_serves_unless_another_is_faster_by_far(monkeypatch, times, chosen):
    left = iter(times)
    monkeypatch.setattr("engines.select.median_ms", lambda call, seconds: next(left))
    assert choose([candidate(name, quick) for name in "abc"]).name == chosen
