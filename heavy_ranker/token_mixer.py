"""The token mixer: what lets tokens read one another without attention."""

from torch import Tensor, nn

from heavy_ranker.norm import RmsNorm
from heavy_ranker.slices import swap_slices
from heavy_ranker.swiglu import PerTokenSwiGlu


class TokenMixer(nn.Module):
    """One block of split, mix, gated layer, revert, gated layer; each token with weights of its own.

    Computes, with tokens ``X [N, B, T]`` and ``P`` the mixed tokens ``[H, B, N * T / H]``::

        P   = mix(X)                                slice h of every token, concatenated, is mixed token h
        P'  = P + SwiGLU_1(RMSNorm(P))
        X'  = X + SwiGLU_2(RMSNorm(revert(P')))     the residual is the block's input

    ``revert`` undoes ``mix``, so the number of slices need not equal the number of tokens.

    Source: "TokenMixer-Large", arXiv:2602.06563, pre-norm block.

    Args:
        num_tokens: N.
        token_dim: T.
        num_slices: H, which divides T.
        expansion: Hidden width over input width, in both gated layers.

    Raises:
        ValueError: ``num_slices`` does not divide ``token_dim``.

    Example:
        >>> import torch
        >>> TokenMixer(num_tokens=3, token_dim=8, num_slices=2, expansion=2)(torch.ones(3, 5, 8)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(self, num_tokens: int, token_dim: int, num_slices: int, expansion: int) -> None:
        super().__init__()
        if token_dim % num_slices:
            raise ValueError(f"num_slices must divide token_dim, got num_slices={num_slices}, token_dim={token_dim}")
        mixed_dim = num_tokens * token_dim // num_slices
        self.num_slices = num_slices
        self.mixed_norm = RmsNorm(num_slices, 1, mixed_dim)
        self.mixed_layer = PerTokenSwiGlu(num_slices, mixed_dim, expansion * mixed_dim)
        self.token_norm = RmsNorm(num_tokens, 1, token_dim)
        self.token_layer = PerTokenSwiGlu(num_tokens, token_dim, expansion * token_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        mixed = mix(tokens, self.num_slices)
        mixed = mixed + self.mixed_layer(self.mixed_norm(mixed))
        return tokens + self.token_layer(self.token_norm(revert(mixed, tokens.shape[0])))


def mix(tokens: Tensor, num_slices: int) -> Tensor:
    """``[N, B, T]`` to ``[H, B, N * T / H]``: slice h of every token, concatenated, becomes mixed token h."""
    num_tokens, rows, dim = tokens.shape
    return swap_slices(tokens.reshape(num_tokens, rows, num_slices, dim // num_slices))


def revert(mixed: Tensor, num_tokens: int) -> Tensor:
    """Undo :func:`mix`: ``[H, B, N * T / H]`` to ``[N, B, T]``.

    Example:
        >>> import torch
        >>> tokens = torch.arange(24.0).reshape(3, 2, 4)
        >>> torch.equal(revert(mix(tokens, 2), 3), tokens)
        True
    """
    num_slices, rows, mixed_dim = mixed.shape
    return swap_slices(mixed.reshape(num_slices, rows, num_tokens, mixed_dim // num_tokens))
