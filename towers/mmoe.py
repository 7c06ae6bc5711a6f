"""Multi-gate mixture of DCN experts.

Shapes: B rows, D width of the crossed vector, X experts, H heads.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from modeling.cross import CrossLayer, LowRankCrossLayer
from towers.config import Arrangement


class CrossStack(nn.Module):
    """Full-rank and low-rank cross layers over one vector.

    Stacked: the low-rank layers continue behind the full-rank ones, so that the degree of the interactions adds up.
    Parallel: both start from ``x0`` and what each adds to it is summed, ``full(x0) + low(x0) - x0``.

    Source: Wang et al. 2021, "DCN V2", arXiv:2008.13535; an expert that holds both kinds follows Pinterest's
    description of its MMOE-DCN two-tower (2026), which leaves their arrangement open.

    Args:
        dim: Width, D.
        full_rank_layers: Number of full-rank layers.
        low_rank_layers: Number of low-rank layers.
        rank: Rank of the low-rank layers.
        arrangement: ``stacked`` or ``parallel``.

    Raises:
        ValueError: ``arrangement`` is neither.

    Example:
        >>> CrossStack(8, full_rank_layers=1, low_rank_layers=2, rank=2, arrangement="parallel")(torch.ones(3, 8)).shape
        torch.Size([3, 8])
    """

    def __init__(
        self, dim: int, *, full_rank_layers: int, low_rank_layers: int, rank: int, arrangement: Arrangement
    ) -> None:
        super().__init__()
        if arrangement not in ("stacked", "parallel"):
            raise ValueError(f"arrangement must be stacked or parallel, got {arrangement!r}")
        self.full_rank = nn.ModuleList(CrossLayer(dim) for _ in range(full_rank_layers))
        self.low_rank = nn.ModuleList(LowRankCrossLayer(dim, rank) for _ in range(low_rank_layers))
        self.arrangement = arrangement

    def forward(self, x0: Tensor) -> Tensor:
        """Cross ``x0`` [B, D] with itself; returns [B, D]."""
        full = _run(self.full_rank, x0, x0)
        if self.arrangement == "stacked":
            return _run(self.low_rank, x0, full)
        return full + _run(self.low_rank, x0, x0) - x0


class Expert(nn.Module):
    """Cross layers, then an MLP with a residual around it.

    Computes ``z + MLP(LayerNorm(z))`` with ``z`` the crossed input: the polynomial in the features passes through
    unchanged, the MLP adds what it cannot express.

    Args:
        cross: Maps [B, D] to [B, D].
        dim: Width, D.
        hidden_dims: Hidden layers of the MLP.
        dropout: Share of hidden units dropped while training.
    """

    def __init__(self, cross: nn.Module, *, dim: int, hidden_dims: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.cross = cross
        self.mlp = nn.Sequential(nn.LayerNorm(dim), *_hidden_layers(dim, hidden_dims, dropout))
        self.out = nn.Linear([dim, *hidden_dims][-1], dim)

    def forward(self, x0: Tensor) -> Tensor:
        """Refine ``x0`` [B, D]; returns [B, D]."""
        z = self.cross(x0)
        return z + self.out(self.mlp(z))


class Gate(nn.Module):
    """An MLP gate: ``softmax(W2 relu(W1 x + b1) + b2)``, the weight of each expert for one head.

    Args:
        dim: Width of the input, D.
        hidden_dim: Width of the hidden layer.
        num_experts: X.
    """

    def __init__(self, dim: int, hidden_dim: int, num_experts: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, hidden_dim)
        self.out = nn.Linear(hidden_dim, num_experts)

    def with_hidden(self, hidden: nn.Linear) -> "Gate":
        """A gate with another hidden layer of the same size; the output layer is shared."""
        gate = Gate(hidden.in_features, hidden.out_features, self.out.out_features)
        gate.hidden, gate.out = hidden, self.out
        return gate

    def forward(self, x: Tensor) -> Tensor:
        """Weights [B, X] that sum to 1 for ``x`` [B, D]."""
        return torch.softmax(self.out(torch.relu(self.hidden(x))), dim=-1)


class Mmoe(nn.Module):
    """Experts shared by all heads, mixed by one gate a head.

    Computes ``y_h = sum_x gate_h(x0)_x * expert_x(x0)``.

    Source: Ma et al. 2018, "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts".

    Args:
        experts: X modules from [B, D] to [B, D].
        gates: H modules from [B, D] to [B, X].
    """

    def __init__(self, experts: Sequence[nn.Module], gates: Sequence[nn.Module]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self.gates = nn.ModuleList(gates)

    def forward(self, x0: Tensor) -> Tensor:
        """Mix the experts for each head: [B, D] to [B, H, D]."""
        outputs = torch.stack([expert(x0) for expert in self.experts], dim=1)  # [B, X, D]
        weights = torch.stack([gate(x0) for gate in self.gates], dim=1)  # [B, H, X]
        return torch.matmul(weights, outputs)


def _run(layers: nn.ModuleList, x0: Tensor, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x0, x)
    return x


def _hidden_layers(dim: int, hidden_dims: Sequence[int], dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width, next_width in zip([dim, *hidden_dims], hidden_dims, strict=False):
        layers += [nn.Linear(width, next_width), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return layers
