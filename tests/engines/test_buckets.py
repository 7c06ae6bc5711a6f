"""A bucketed engine equals the engine, and the engine meets bucket sizes only."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import MismatchError
from engines.buckets import BucketedEngine, bucket_for, bucket_shapes, dim_sizes, pad, used_length
from engines.onnxruntime_cpu import OnnxRuntimeEngine


class Recording:
    """Runs a function of arrays and remembers the shapes it was given."""

    name = "recording"

    def __init__(self, run):
        self._run = run
        self.shapes = []

    def run(self, inputs):
        self.shapes.append({name: array.shape for name, array in inputs.items()})
        return self._run(inputs)


def deep(engine, rows=(4, 64), length=(8, 16)):
    return BucketedEngine(
        engine,
        inputs={"x": {0: "rows", 1: "length"}, "mask": {0: "rows", 1: "length"}},
        outputs={"probabilities": {0: "rows"}, "pooled": {0: "rows"}},
        buckets={"rows": rows, "length": length},
        zeros=("length",),
    )


@pytest.mark.parametrize(
    ("rows", "events", "met"),
    [(1, 7, (4, 8)), (4, 8, (4, 8)), (5, 10, (64, 16)), (37, 1, (64, 8))],
)
def test_equals_the_unpadded_engine(deep_graph, deep_inputs, rows, events, met):
    engine = OnnxRuntimeEngine(deep_graph, threads=1)
    inputs = {name: np.ascontiguousarray(array[:rows, :events]) for name, array in deep_inputs.items()}
    recording = Recording(engine.run)
    computed, expected = deep(recording).run(inputs), engine.run(inputs)
    assert recording.shapes == [{"x": (*met, 16), "mask": met}]
    for name, values in expected.items():
        np.testing.assert_allclose(computed[name], values, atol=1e-6)
        assert computed[name].shape == values.shape


@pytest.mark.parametrize("rows", [0, 65])
def test_no_rows_and_rows_above_the_largest_bucket_go_through_as_they_are(deep_graph, rows):
    engine = Recording(OnnxRuntimeEngine(deep_graph, threads=1).run)
    inputs = {"x": np.ones((rows, 8, 16), np.float32), "mask": np.ones((rows, 8), np.float32)}
    assert deep(engine).run(inputs)["probabilities"].shape == (rows, 2)
    assert engine.shapes == [{"x": (rows, 8, 16), "mask": (rows, 8)}]


def weighted(inputs):
    """Each ad times its request."""
    return {"scores": inputs["ads"] * inputs["state"][:, None], "state": inputs["state"] + 1}


def of_requests(requests, ads, seed, splits=()):
    """An engine that records its shapes, in buckets of requests and ads, and inputs for it."""
    rng = np.random.default_rng(seed)
    inputs = {"state": rng.normal(size=(requests, 3)), "ads": rng.normal(size=(requests, ads, 3))}
    engine = Recording(weighted)
    bucketed = BucketedEngine(
        engine,
        inputs={"ads": {0: "requests", 1: "ads"}, "state": {0: "requests"}},
        outputs={"scores": {0: "requests", 1: "ads"}, "state": {0: "requests"}},
        buckets={"requests": (1, 4), "ads": (5,)},
        splits=splits,
    )
    return engine, bucketed, inputs


@given(requests=st.integers(1, 6), ads=st.integers(1, 9), seed=st.integers(0, 99))
def test_ads_of_several_requests(requests, ads, seed):
    engine, bucketed, inputs = of_requests(requests, ads, seed)
    computed, expected = bucketed.run(inputs), weighted(inputs)
    for name, values in expected.items():
        np.testing.assert_array_equal(computed[name], values)
    wide, deep = bucket_for(requests, (1, 4)), bucket_for(ads, (5,))
    assert engine.shapes == [{"state": (wide, 3), "ads": (wide, deep, 3)}]


@given(requests=st.integers(0, 9), ads=st.integers(0, 11), seed=st.integers(0, 99))
def test_pieces_of_the_largest_bucket(requests, ads, seed):
    engine, bucketed, inputs = of_requests(requests, ads, seed, splits=("requests", "ads"))
    computed, expected = bucketed.run(inputs), weighted(inputs)
    for name, values in expected.items():
        np.testing.assert_array_equal(computed[name], values)
    if requests and ads:
        assert {shapes["ads"] for shapes in engine.shapes} <= {(1, 5, 3), (4, 5, 3)}


def test_every_combination_of_buckets_has_its_shapes():
    axes = {"ads": {0: "requests", 1: "ads"}, "state": {0: "requests"}}
    shapes = bucket_shapes(axes, {"ads": (None, None, 3), "state": (7, 2)}, {"requests": (1, 4), "ads": (2, 5)})
    assert shapes == [
        {"ads": (4, 5, 3), "state": (4, 2)},
        {"ads": (4, 2, 3), "state": (4, 2)},
        {"ads": (1, 5, 3), "state": (1, 2)},
        {"ads": (1, 2, 3), "state": (1, 2)},
    ]
    with pytest.raises(ValueError, match="no buckets for ads, got buckets of requests"):
        bucket_shapes(axes, {"ads": (None, None, 3)}, {"requests": (1,)})


def test_rows_repeat_the_first_and_events_are_zeros():
    array = np.array([[1, 2], [3, 4]])
    np.testing.assert_array_equal(pad(array, 0, 4, repeat=True), [[1, 2], [3, 4], [1, 2], [1, 2]])
    np.testing.assert_array_equal(pad(array, 1, 3, repeat=False), [[1, 2, 0], [3, 4, 0]])
    assert pad(array, 0, 2, repeat=True) is array


def test_an_empty_history_uses_one_event():
    assert used_length(np.zeros((3, 5), bool)) == 1
    assert used_length(np.zeros((0, 5), bool)) == 1
    assert used_length(np.array([[1, 0], [1, 1]], np.float32)) == 2


def test_inputs_that_disagree_are_named():
    axes = {"x": {0: "rows"}, "mask": {0: "rows"}}
    with pytest.raises(MismatchError, match="input mask has 3 rows, another has 2"):
        dim_sizes({"x": np.ones(2), "mask": np.ones(3)}, axes)


@pytest.mark.parametrize("sizes", [(), (0, 4), (8, 4), (4, 4)])
def test_buckets_must_ascend(sizes):
    with pytest.raises(ValueError, match="buckets of rows must be positive and ascending"):
        BucketedEngine(Recording(dict), inputs={}, outputs={}, buckets={"rows": sizes})
