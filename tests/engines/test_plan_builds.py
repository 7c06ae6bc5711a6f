"""Plans are built aside, one after another; whoever asks meanwhile is told so, and afterwards finds them."""

import threading

import pytest

from contracts.errors import ArtifactError
from engines.parity import FP32_GATE
from engines.plan_builds import PlanBuilds, PlanRequest
from engines.protocol import EngineNotNowError
from engines.select import Candidate, select_engine

SHAPES = [{"x": (4, 3)}]


class Library:
    """What a key is made of."""

    __name__, __version__ = "tensorrt", "10.0"


def request_of(graph, directory, **changes):
    given = {"shapes": SHAPES, "precision": "bf16", "architecture": "sm90"} | changes
    return PlanRequest(library=Library, graph=graph, directory=directory, **given)


class Builder:
    """Writes the name of a graph as its plan, once it is let go."""

    def __init__(self):
        self.go, self.built = threading.Event(), []

    def __call__(self, request):
        assert self.go.wait(30)
        if request.graph.name == "bad.onnx":
            raise RuntimeError("no kernel for this graph")
        self.built.append(request.graph.name)
        request.file.parent.mkdir(exist_ok=True)
        request.file.write_bytes(request.graph.name.encode())
        return request.file.read_bytes()


def finish(builds):
    thread = builds._thread
    if thread is not None:
        thread.join(30)


@pytest.fixture
def graphs(tmp_path):
    for name in ("a.onnx", "b.onnx", "bad.onnx"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def test_a_plan_is_there_once_it_is_built(graphs):
    builder = Builder()
    builds, wanted = PlanBuilds(builder), [request_of(graphs / name, graphs / "plans") for name in ("a.onnx", "b.onnx")]
    for _ in range(3):
        for request in wanted:
            with pytest.raises(EngineNotNowError, match=r"onnx: its plan for sm90 is being built"):
                builds(request)
    assert builds.num_waiting == 2
    builder.go.set()
    finish(builds)
    assert (builds.count, builds.num_waiting, builder.built) == (2, 0, ["a.onnx", "b.onnx"])
    assert [builds(request) for request in wanted] == [b"a.onnx", b"b.onnx"]


@pytest.mark.parametrize("change", [{"architecture": "sm86"}, {"precision": "fp32"}, {"shapes": [{"x": (8, 3)}]}])
def test_another_key_is_another_plan(graphs, change):
    builder = Builder()
    builder.go.set()
    builds, first = PlanBuilds(builder), request_of(graphs / "a.onnx", graphs / "plans")
    other = request_of(graphs / "a.onnx", graphs / "plans", **change)
    assert first.file != other.file
    for request in (first, other):
        with pytest.raises(EngineNotNowError):
            builds(request)
        finish(builds)
    (graphs / "a.onnx").write_bytes(b"another model")
    with pytest.raises(EngineNotNowError):
        builds(first)
    finish(builds)
    assert builder.built == ["a.onnx"] * 3


def test_a_plan_that_cannot_be_built_is_told_and_not_tried_again(graphs):
    builder = Builder()
    builder.go.set()
    builds, bad = PlanBuilds(builder), request_of(graphs / "bad.onnx", graphs / "plans")
    with pytest.raises(EngineNotNowError):
        builds(bad)
    finish(builds)
    for _ in range(2):
        with pytest.raises(ArtifactError, match="bad.onnx: its plan cannot be built: no kernel for this graph"):
            builds(bad)
    assert builds.count == 1


def test_an_engine_whose_plan_is_being_built_is_unavailable_for_now(graphs):
    builds = PlanBuilds(Builder())
    tensors = {"in.x": [1.0], "out.y": [1.0]}

    def load():
        return builds(request_of(graphs / "a.onnx", graphs / "plans"))

    candidate = Candidate(name="tensorrt", load=load, gate=FP32_GATE)
    with pytest.raises(EngineNotNowError, match="no engine can serve: tensorrt unavailable: .* is being built"):
        select_engine([candidate], tensors, run=lambda loaded: loaded, source="test")
    builds._build.go.set()
    finish(builds)
