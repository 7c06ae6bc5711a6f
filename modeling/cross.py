"""Cross layers of DCN-V2: explicit feature interactions whose degree grows by one a layer.

Shapes: B rows, D width of the crossed vector.
"""

import torch
from torch import Tensor, nn


class CrossLayer(nn.Module):
    """One full-rank DCN-V2 cross layer.

    Computes ``x0 * (W x + b) + x`` at ``dim ** 2`` weights. Starts close to the identity: W is drawn small, so that a
    stack of layers begins as the linear model it refines.

    Source: Wang et al. 2021, "DCN V2", arXiv:2008.13535.

    Args:
        dim: Width of the crossed vector, D.

    Example:
        >>> layer = CrossLayer(dim=8)
        >>> layer(torch.ones(3, 8), torch.ones(3, 8)).shape
        torch.Size([3, 8])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        _init_small(self.linear)

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        """Cross ``x`` [B, D] with the first layer's input ``x0`` [B, D]."""
        return torch.addcmul(x, x0, self.linear(x))


class LowRankCrossLayer(nn.Module):
    """One DCN-V2 cross layer whose weight is factorised through a narrow rank.

    Computes ``x0 * (U V x + b) + x``: each layer raises the degree of the interaction with ``x0`` by one, at
    ``2 * dim * rank`` weights where the full-rank layer needs ``dim ** 2``.

    Source: Wang et al. 2021, "DCN V2", arXiv:2008.13535.

    Args:
        dim: Width of the crossed vector, D.
        rank: Width of the bottleneck. Saves compute only below ``dim / 2``.

    Raises:
        ValueError: ``rank`` is not in ``1..dim``.

    Example:
        >>> layer = LowRankCrossLayer(dim=8, rank=2)
        >>> layer(torch.ones(3, 8), torch.ones(3, 8)).shape
        torch.Size([3, 8])
    """

    def __init__(self, dim: int, rank: int) -> None:
        super().__init__()
        if not 1 <= rank <= dim:
            raise ValueError(f"rank must be in 1..dim, got rank={rank}, dim={dim}")
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim)
        _init_small(self.up)

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        """Cross ``x`` [B, D] with the first layer's input ``x0`` [B, D]."""
        return torch.addcmul(x, x0, self.up(self.down(x)))


def _init_small(linear: nn.Linear) -> None:
    nn.init.xavier_uniform_(linear.weight, gain=0.5)
    nn.init.zeros_(linear.bias)
