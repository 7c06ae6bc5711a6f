"""The dense inputs of a batch: as long as its longest history, and worth what the padded ones are."""

import msgspec
import numpy as np
import pytest
import torch

from heavy_ranker.data import read_impressions
from heavy_ranker.rows import IndexedRows
from heavy_ranker.run import build_model
from modeling.batches import gather


@pytest.fixture(scope="module")
def impressions(schema, log, run):
    return read_impressions(schema, log, run.path / "examples")


def short_histories(impressions, schema):
    """Impressions of requests whose histories are all shorter than the schema allows."""
    clicks = (np.asarray(impressions.query.ids)[:, 1:6] != 0).sum(1)
    rows = np.flatnonzero((clicks <= 3)[impressions.request_row])
    return gather(impressions, rows[:50])


def test_sequences_end_with_the_longest_of_the_batch(impressions, schema, config):
    batch = short_histories(impressions, schema)
    inputs = build_model(schema, config).look_up(batch.sides())
    for events, mask in inputs.sequences.values():
        assert events.shape[1] == mask.shape[1] == max(2, int(mask.sum(1).max()))
    assert inputs.sequences["clicks"][0].shape[1] == 3


@pytest.mark.parametrize("encoder", ["swiglu", "transformer", "longer"])
def test_logits_are_those_of_the_whole_length(impressions, schema, config, encoder, randomised):
    sizes = msgspec.structs.replace(config.model, sequence_encoder=encoder)
    model = build_model(schema, msgspec.structs.replace(config, model=sizes))
    randomised(model.ranker)
    batch = short_histories(impressions, schema)
    found = model.tables.forward_sides(batch.sides())
    whole = {name: (events, mask.float()) for name, (events, mask) in found["query"].sequences.items()}
    rows = IndexedRows(batch.request_index, len(batch.query.ids))
    inputs = model.look_up(batch.sides())
    with torch.no_grad():
        expected = model.interact(inputs._replace(sequences=whole), rows, batch.ad_index)
        torch.testing.assert_close(model.interact(inputs, rows, batch.ad_index), expected, atol=1e-5, rtol=1e-5)
