"""Bias and scale folded into the embedding: one dot product is the whole logit."""

import pytest
import torch

from towers import embedding
from towers.embedding import EmbeddingHeads, pair_logits


def _heads(side: str) -> EmbeddingHeads:
    return EmbeddingHeads(dim=8, num_heads=3, head_dim=4, side=side)


def _representations(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, 3, 8, generator=torch.Generator().manual_seed(seed))


def _projected(heads: EmbeddingHeads, x: torch.Tensor) -> torch.Tensor:
    return torch.stack([heads.projections[h](heads.norm(x)[:, h]) for h in range(3)], dim=1)


def test_dot_product_is_scaled_vectors_plus_both_biases() -> None:
    query_heads, pin_heads = _heads("query"), _heads("ad")
    with torch.no_grad():
        query_heads.log_scale.copy_(torch.tensor([[0.3], [-1.0], [0.0]]))
    x, y = _representations(4, 0), _representations(4, 1)
    query, pin = _projected(query_heads, x), _projected(pin_heads, y)
    vectors = (query[..., :4] * pin[..., :4]).sum(-1) * query_heads.log_scale.exp()[:, 0]
    expected = vectors + query[..., 4] + pin[..., 4]
    torch.testing.assert_close((query_heads(x) * pin_heads(y)).sum(-1), expected)


def test_constants_sit_where_the_other_side_has_its_bias() -> None:
    query, pin = _heads("query")(_representations(2, 0)), _heads("ad")(_representations(2, 1))
    assert query.shape == pin.shape == (2, 3, 6)
    torch.testing.assert_close(query[..., 4], torch.ones(2, 3), rtol=0, atol=0)
    torch.testing.assert_close(pin[..., 5], torch.ones(2, 3), rtol=0, atol=0)


def test_prior_is_the_bias_of_each_head() -> None:
    heads = _heads("query")
    heads.set_prior(torch.tensor([-1.0, -2.0, -3.0]))
    with torch.no_grad():
        for projection in heads.projections:
            projection.weight.zero_()
    torch.testing.assert_close(heads(_representations(1, 0))[0, :, 5], torch.tensor([-1.0, -2.0, -3.0]))


def test_embeddings_are_fp32_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        query, pin = _heads("query")(_representations(2, 0)), _heads("ad")(_representations(2, 1))
        logits = pair_logits(query, pin, torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert query.dtype == pin.dtype == logits.dtype == torch.float32
    torch.testing.assert_close(logits, (query * pin).sum(-1))


def test_autocast_does_not_round_the_bias_of_a_rare_event() -> None:
    """BF16 numbers near 9 are 0.06 apart, which is 6 % of a rare event's probability."""
    heads, prior = _heads("query"), torch.tensor([-9.03, -9.01, -8.99])
    heads.set_prior(prior)
    with torch.no_grad():
        for projection in heads.projections:
            projection.weight.mul_(1e-3)
    x = _representations(50, 0)
    exact = heads(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = heads(x)
    torch.testing.assert_close(rounded[..., 5], exact[..., 5], rtol=0, atol=1e-4)


def test_a_side_without_a_tower_is_refused() -> None:
    with pytest.raises(ValueError, match="a tower is of side query or ad, got 'pair'"):
        _heads("pair")


@pytest.mark.parametrize("waste", [0, 1_000_000])
def test_pair_logits_are_the_dot_products_by_grid_and_by_gather(waste: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "GRID_WASTE", waste)
    generator = torch.Generator().manual_seed(2)
    query = torch.randn(3, 2, 5, generator=generator, requires_grad=True)
    pin = torch.randn(4, 2, 5, generator=generator, requires_grad=True)
    requests, ads = torch.tensor([0, 2, 2, 1]), torch.tensor([3, 0, 1, 3])
    logits = pair_logits(query, pin, requests, ads)
    expected = torch.stack([(query[r] * pin[a]).sum(-1) for r, a in zip(requests, ads, strict=True)])
    torch.testing.assert_close(logits, expected)
    got = torch.autograd.grad(logits.square().sum(), (query, pin))
    torch.testing.assert_close(got, torch.autograd.grad(expected.square().sum(), (query, pin)))
