"""The compiled dense layers train as the eager ones do, from one graph, and leave no trace in names."""

import copy

import msgspec
import numpy as np
import pytest
import torch

from heavy_ranker.data import read_impressions
from heavy_ranker.run import build_model
from heavy_ranker.train import batch_loss, fit
from modeling.batches import ShuffledBatches, gather
from modeling.compile import compiled, has_compiler
from modeling.precision import autocast
from modeling.tables import dense_parameters
from modeling.weights import model_weights

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="needs g++ and Python's headers")


@pytest.fixture(scope="module")
def impressions(schema, log, run):
    return read_impressions(schema, log, run.path / "examples")


def gradients(model, batch, precision, interact):
    model.zero_grad()
    with autocast(precision, "cpu"):
        loss = batch_loss(model, interact=interact)(batch)
    loss.backward()
    return loss.item(), {name: value.grad.clone() for name, value in dense_parameters(model).items()}


def test_bf16_gradients_are_near_the_fp32_ones(schema, config, impressions):
    """Each product rounds to 8 bits and many of its terms cancel: a few parts in a hundred of the whole gradient."""
    model = build_model(schema, config)
    batch = gather(impressions, np.arange(256))
    expected, exact = gradients(copy.deepcopy(model), batch, "fp32", None)
    found, rounded = gradients(model, batch, "bf16", None)
    assert found == pytest.approx(expected, rel=5e-3)
    exact_vector, rounded_vector = (torch.cat([g.flatten() for g in found.values()]) for found in (exact, rounded))
    assert (rounded_vector - exact_vector).norm() <= 0.05 * exact_vector.norm()


@pytest.mark.slow
@needs_compiler
def test_compiled_losses_and_gradients_are_the_eager_ones_from_one_graph(schema, config, impressions):
    torch._dynamo.reset()
    model = build_model(schema, config)
    fast = compiled(model.interact)
    for batch in ShuffledBatches(impressions, pairs_per_batch=100, by="request").epoch(0):
        expected, eager = gradients(copy.deepcopy(model), batch, "fp32", None)  # backward also trains the tables
        found, inductor = gradients(model, batch, "fp32", fast)
        assert found == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(inductor, eager, atol=1e-5, rtol=1e-3)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
@needs_compiler
def test_a_compiled_run_ends_where_the_eager_one_does(schema, config, impressions, tmp_path):
    """Sums in another order grow apart over hundreds of steps, so losses are compared and not single weights."""
    names, losses = [], []
    for choice in (False, True):
        model = build_model(schema, config)
        chosen = msgspec.structs.replace(config, compile=choice)
        result = fit(model, impressions, None, chosen, tmp_path / str(choice))
        names.append(sorted(model_weights(model)))
        losses.append([look.train_loss for look in result.history])
    assert names[0] == names[1]
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)
