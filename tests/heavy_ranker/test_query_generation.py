import numpy as np
import torch

from heavy_ranker.query_generation import OneTokenQueries, QueryGeneration


def test_queries_equal_one_network_each_over_the_whole_input(reference, randomised):
    generation = randomised(QueryGeneration(num_queries=3, request_dim=9, ad_dim=6, hidden_dim=5, token_dim=3))
    request, pooled, ads = torch.randn(2, 2, 3), torch.randn(2, 1, 3), torch.randn(2, 2, 3)
    queries = reference.array(generation(generation.request_part(request, pooled), ads))
    for row in range(2):
        parts = (reference.array(part) for part in (request[row], pooled[row], ads[:, row]))
        np.testing.assert_allclose(queries[:, row], reference.all_token_queries(generation, *parts), atol=1e-5)


def test_a_query_of_one_token_equals_its_own_network(reference, randomised):
    generation = randomised(OneTokenQueries(num_queries=4, num_sequences=2, ad_tokens=3, hidden_dim=5, token_dim=6))
    request, pooled, ads = torch.randn(2, 2, 6), torch.randn(2, 2, 6), torch.randn(3, 2, 6)
    queries = reference.array(generation(generation.request_part(request, pooled), ads))
    for row in range(2):
        parts = (reference.array(part) for part in (pooled[row], ads[:, row]))
        np.testing.assert_allclose(queries[:, row], reference.one_token_queries(generation, *parts), atol=1e-5)


def test_a_query_of_one_token_reads_that_token_and_its_sequence_alone():
    generation = OneTokenQueries(num_queries=4, num_sequences=2, ad_tokens=3, hidden_dim=5, token_dim=6)
    pooled, ads = torch.randn(1, 2, 6, requires_grad=True), torch.randn(3, 1, 6, requires_grad=True)
    for query in range(4):
        token = generation(generation.request_part(torch.randn(1, 2, 6), pooled), ads)[query].sum()
        by_pooled, by_ads = torch.autograd.grad(token, [pooled, ads])
        assert torch.nonzero(by_pooled.abs().sum((0, 2))).flatten().tolist() == [query // 2]
        assert torch.nonzero(by_ads.abs().sum((1, 2))).flatten().tolist() == [query % 3]
