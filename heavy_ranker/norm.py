"""Root-mean-square normalisation, of sequence encoders and HyFormer.

Shape letters of this package: B rows (request and ad pairs), R requests, N tokens, T token width, Q query tokens,
S sequences, L sequence length, E event embedding, H heads, F flat features, X experts, K tasks.
"""

import torch
from torch import Tensor, nn

EPSILON = 1e-6


class RmsNorm(nn.Module):
    """Scale the last axis to unit root mean square, then by a learned gain.

    Computes ``x / sqrt(mean(x ** 2) + 1e-6) * gain``. No mean is taken away and there is no bias, so a row of zeros
    (an empty sequence) stays a row of zeros.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", arXiv:1910.07467.

    Args:
        shape: Shape of the gain; ``[T]`` shares it, ``[N, 1, T]`` gives each of N token-major tokens its own.

    Example:
        >>> RmsNorm(4)(torch.full((1, 4), 3.0)).round(decimals=4).tolist()
        [[1.0, 1.0, 1.0, 1.0]]
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * self.gain.to(x.dtype)
