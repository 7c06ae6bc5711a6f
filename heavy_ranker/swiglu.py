"""SwiGLU feed-forward layers: one shared by all positions, and one with weights of its own for each token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DOWN_INIT_SCALE = 0.01


class SwiGlu(nn.Module):
    """Gated feed-forward layer, the same for every position.

    Computes ``W_down(silu(W_gate x) * W_up x)``. Gate and up are separate matrices: a chunked one is a view in eager
    mode, but a copy in graph engines.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", arXiv:2002.05202.

    Args:
        dim: Width of input and output, T.
        hidden_dim: Width between.

    Example:
        >>> SwiGlu(dim=4, hidden_dim=8)(torch.ones(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden_dim, bias=False)
        self.up = nn.Linear(dim, hidden_dim, bias=False)
        self.down = nn.Linear(hidden_dim, dim, bias=False)
        for linear in (self.gate, self.up, self.down):
            nn.init.xavier_uniform_(linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class PerTokenSwiGlu(nn.Module):
    """Gated feed-forward layer with weights of its own for each token.

    Computes ``y_n = W_down_n(silu(W_gate_n x_n) * W_up_n x_n)`` for token n. Tokens stand first, ``[N, B, T]``, so that
    one batched matrix product serves all of them.

    The down projection starts 100 times smaller than the other two: a residual block that holds this layer starts as
    the identity, which TokenMixer-Large found best.

    Source: "TokenMixer-Large", arXiv:2602.06563.

    Args:
        num_tokens: N.
        dim: Width of a token, T.
        hidden_dim: Width between.

    Example:
        >>> PerTokenSwiGlu(num_tokens=3, dim=4, hidden_dim=8)(torch.ones(3, 2, 4)).shape
        torch.Size([3, 2, 4])
    """

    def __init__(self, num_tokens: int, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(stacked_xavier(num_tokens, dim, hidden_dim))
        self.up = nn.Parameter(stacked_xavier(num_tokens, dim, hidden_dim))
        self.down = nn.Parameter(stacked_xavier(num_tokens, hidden_dim, dim) * DOWN_INIT_SCALE)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(F.silu(torch.bmm(x, self.gate)) * torch.bmm(x, self.up), self.down)


def stacked_xavier(count: int, fan_in: int, fan_out: int, *, true_fan_in: int | None = None) -> Tensor:
    """Glorot-uniform matrices ``[count, fan_in, fan_out]``, each drawn with its own fan rather than the stack's.

    Args:
        true_fan_in: Inputs that are really used where ``fan_in`` is padded.
    """
    bound = (6.0 / ((true_fan_in or fan_in) + fan_out)) ** 0.5
    return torch.empty(count, fan_in, fan_out).uniform_(-bound, bound)
