"""The D+2 dimensions of an embedding: bias and scale folded in, so that one dot product is the whole logit.

For each head:

    query  [scale * v_q, 1, b_q]
    pin    [v_p,         b_p, 1]        dot = scale * <v_q, v_p> + b_p + b_q

Embeddings and their dot product are fp32, whatever precision the towers compute in. Shapes: B rows, R requests, A ads,
N pairs, H heads, D width of a head's vector, T width of a head's representation.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from towers.config import TowerSide

GRID_WASTE = 32
"""Logits of the full request-by-ad grid that may be computed for each one wanted: a matrix product does about that many
in the time of gathering one pair's rows."""


class EmbeddingHeads(nn.Module):
    """Projects each head's representation to its vector and bias, and folds them into D+2 dimensions.

    The scale is learned on the query side, one a head, and starts at ``1 / sqrt(D)``, which gives logits of unit
    variance from vectors of unit variance.

    Args:
        dim: Width of a representation, T.
        num_heads: H.
        head_dim: Width of a head's vector, D.
        side: ``query`` or ``ad``; decides where bias and constant go.

    Raises:
        ValueError: ``side`` has no tower.

    Example:
        >>> EmbeddingHeads(dim=8, num_heads=2, head_dim=4, side="ad")(torch.ones(3, 2, 8)).shape
        torch.Size([3, 2, 6])
    """

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, side: TowerSide) -> None:
        super().__init__()
        if side not in ("query", "ad"):
            raise ValueError(f"a tower is of side query or ad, got {side!r}")
        self.norm = nn.LayerNorm(dim)
        self.projections = nn.ModuleList(nn.Linear(dim, head_dim + 1) for _ in range(num_heads))
        self.side = side
        if side == "query":
            self.log_scale = nn.Parameter(torch.full((num_heads, 1), -0.5 * math.log(head_dim)))

    def set_prior(self, logits: Tensor) -> None:
        """Start the biases of the heads at ``logits`` [H], such as the teacher's mean, instead of 0."""
        with torch.no_grad():
            for projection, logit in zip(self.projections, logits, strict=True):
                projection.bias[-1] = logit

    def forward(self, representations: Tensor) -> Tensor:
        """Embed ``representations`` [B, H, T]; returns fp32 [B, H, D+2]."""
        x = self.norm(representations)
        heads = [_project(layer, x[:, head]) for head, layer in enumerate(self.projections)]
        projected = torch.stack(heads, dim=1)
        vectors, bias = projected[..., :-1], projected[..., -1:]
        one = torch.ones_like(bias)
        if self.side == "query":
            return torch.cat([vectors * self.log_scale.exp(), one, bias], dim=-1)
        return torch.cat([vectors, bias, one], dim=-1)


def _project(layer: nn.Linear, x: Tensor) -> Tensor:
    """The linear layer with its bias added in fp32: BF16 would round the logit of a rare event by hundredths."""
    return functional.linear(x, layer.weight).float() + layer.bias


def pair_logits(query: Tensor, pin: Tensor, request_index: Tensor, ad_index: Tensor) -> Tensor:
    """Dot products of the wanted pairs.

    Where most of the request-by-ad grid is wanted, the grid is one matrix product a head and pairs are picked from it;
    otherwise the rows of both sides are gathered. Both give the same logits.

    Args:
        query: Query embeddings [R, H, D+2].
        pin: Pin embeddings [A, H, D+2].
        request_index: Row of ``query`` of each pair [N].
        ad_index: Row of ``pin`` of each pair [N].

    Returns:
        fp32 logits [N, H].

    Example:
        >>> query, pin = torch.ones(2, 1, 3), torch.ones(4, 1, 3)
        >>> pair_logits(query, pin, torch.tensor([0, 1]), torch.tensor([3, 0])).tolist()
        [[3.0], [3.0]]
    """
    with torch.autocast(query.device.type, enabled=False):
        query, pin = query.float(), pin.float()
        if len(query) * len(pin) > GRID_WASTE * len(request_index):
            return (query.index_select(0, request_index) * pin.index_select(0, ad_index)).sum(-1)
        grid = torch.matmul(query.permute(1, 0, 2), pin.permute(1, 2, 0))  # [H, R, A]
        return grid.flatten(1).index_select(1, request_index * len(pin) + ad_index).T
