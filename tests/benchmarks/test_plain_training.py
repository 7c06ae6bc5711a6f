"""The plain side of the training benchmark is the same model: equal weights give equal logits."""

import numpy as np
import pytest
import torch

from benchmarks.our_training import OurTraining
from benchmarks.plain_training import Example, PlainTraining, plain_loader
from benchmarks.training_log import EVENTS, training_log
from heavy_ranker.loss import impression_loss
from heavy_ranker.presets import small
from modeling.batches import gather


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    schema, _, examples = training_log(tmp_path_factory.mktemp("training"), "tiny")
    return schema, examples


def example_rows(examples, rows):
    """The rows as the plain loader would collate them, in a known order."""
    loader = plain_loader(examples, batch_size=1, seed=0)
    return Example(*(torch.stack(field) for field in zip(*(loader.dataset[row] for row in rows), strict=True)))


def same_weights(ours, plain):
    tables = ours.model.tables.export_tables()
    with torch.no_grad():
        for name, weight in plain.model.tables.weights.items():
            weight.copy_(torch.from_numpy(tables[f"tables.{name.replace('-', '.')}"]))
    plain.model.ranker.load_state_dict(ours.model.ranker.state_dict())


def test_plain_and_ours_compute_the_same_logits(log):
    schema, examples = log
    config = small()
    ours, plain = OurTraining(schema, config, compile=False), PlainTraining(schema, config.model, 1e-3)
    same_weights(ours, plain)
    rows = np.random.default_rng(0).permutation(len(examples))[:64]
    batch = gather(examples, rows)
    expected = ours.model(batch.sides(), batch.request_index, batch.ad_index)
    torch.testing.assert_close(plain.model(example_rows(examples, rows)), expected, atol=1e-5, rtol=1e-5)


def test_a_timed_step_updates_as_a_step_does(log):
    schema, examples = log
    once, timed = (OurTraining(schema, small(), compile=False) for _ in range(2))
    batch = gather(examples, np.arange(64))
    once.step(batch)
    parts = timed.timed_step(batch)
    assert all(part > 0 for part in parts)
    torch.testing.assert_close(dict(timed.model.named_parameters()), dict(once.model.named_parameters()))
    for name, table in once.model.tables.export_tables().items():
        np.testing.assert_allclose(timed.model.tables.export_tables()[name], table, atol=1e-6)


def test_a_plain_step_lowers_the_loss_of_its_batch(log):
    schema, examples = log
    plain = PlainTraining(schema, small().model, 1e-3)
    batch = example_rows(examples, range(64))
    losses = []
    for _ in range(5):
        losses.append(impression_loss(plain.model(batch), batch.labels, batch.weight).item())
        plain.step(batch)
    assert losses[-1] < losses[0]


def test_all_histories_take_fifty_events_and_one_repeats_the_clicks(log):
    schema, examples = log
    layouts = {name: feature.max_length for name, feature in schema.features.items() if feature.kind == "sequence"}
    assert layouts == {"recent_clicks": EVENTS, "recent_conversions": EVENTS, "recent_views": EVENTS}
    assert len(np.unique(examples.request_row)) * 4 < len(examples)
