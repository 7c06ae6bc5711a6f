import numpy as np
import pytest
import torch

from heavy_ranker.query_decoding import CrossDecoding
from heavy_ranker.rows import EvenRows, IndexedRows

LENGTHS = (5, 2, 0)
ONE_EACH = EvenRows(num_requests=3, width=1)
MASK = torch.tensor([[float(at < length) for at in range(5)] for length in LENGTHS])


def test_decoding_equals_attention_head_by_head(reference, randomised):
    decoder = randomised(CrossDecoding(dim=6, num_heads=3))
    queries, events = torch.randn(2, 3, 6), torch.randn(3, 5, 6)
    decoded = reference.array(decoder(queries, ONE_EACH, *decoder.memory(events, MASK)))
    for row, length in enumerate(LENGTHS):
        for query in range(2):
            true_events = reference.array(events[row, :length])
            expected = reference.attend(reference.array(queries[query, row]), true_events, decoder)
            np.testing.assert_allclose(decoded[query, row], expected, atol=1e-5)


def test_rows_of_a_request_share_its_memory(randomised):
    decoder = randomised(CrossDecoding(dim=6, num_heads=3))
    index = torch.tensor([1, 0, 1, 1])
    queries, events = torch.randn(2, 4, 6), torch.randn(3, 5, 6)
    shared = decoder(queries, IndexedRows(index, 3), *decoder.memory(events, MASK))
    expanded = decoder(queries, EvenRows(4, 1), *decoder.memory(events[index], MASK[index]))
    torch.testing.assert_close(shared, expanded)


def test_an_empty_sequence_passes_the_query_and_its_gradient(randomised):
    decoder = randomised(CrossDecoding(dim=4, num_heads=2))
    queries, events = torch.randn(1, 3, 4, requires_grad=True), torch.randn(3, 5, 4)
    decoded = decoder(queries, ONE_EACH, *decoder.memory(events, torch.zeros(3, 5)))
    decoded.sum().backward()
    assert torch.equal(decoded, queries)
    assert torch.equal(queries.grad, torch.ones_like(queries))


@pytest.mark.parametrize(("raw", "clamped"), [(50.0, 10.0), (-3.0, 0.1)])
def test_temperature_is_clamped(raw, clamped):
    decoder, queries, events = CrossDecoding(dim=4, num_heads=2), torch.randn(1, 3, 4), torch.randn(3, 5, 4)
    results = []
    for value in (raw, clamped):
        torch.nn.init.constant_(decoder.temperature, value)
        results.append(decoder(queries, ONE_EACH, *decoder.memory(events, MASK)))
    torch.testing.assert_close(*results)


def test_a_colder_head_attends_more_sharply():
    decoder = CrossDecoding(dim=4, num_heads=1)
    for linear in (decoder.to_query, decoder.to_key, decoder.to_value, decoder.to_out):
        torch.nn.init.eye_(linear.weight)
    query, events = torch.tensor([[[1.0, 0, 0, 0]]]), torch.tensor([[[2.0, 0, 0, 0], [0, 2.0, 0, 0]]])
    shares = []
    for temperature in (4.0, 1.0, 0.25):
        torch.nn.init.constant_(decoder.temperature, temperature)
        decoded = decoder(query, EvenRows(1, 1), *decoder.memory(events, torch.ones(1, 2))) - query
        shares.append(decoded[0, 0, 0].item() / 2)
    assert shares == sorted(shares)
    assert 0.5 < shares[0] < shares[-1] <= 1.0


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="num_heads must divide dim, got num_heads=3, dim=8"):
        CrossDecoding(dim=8, num_heads=3)
