"""RankMixer: tokens exchange slices without any weight, then each has a feed-forward network of its own."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heavy_ranker.backbones.protocol import RequestState, Sequences
from heavy_ranker.backbones.target_attention import AttendedSequences
from heavy_ranker.rows import Rows
from heavy_ranker.swiglu import stacked_xavier
from heavy_ranker.token_mixer import mix


class PerTokenFeedForward(nn.Module):
    """``W_2n gelu(W_1n x_n + b_1n) + b_2n``: weights of its own for each token n.

    Args:
        num_tokens: N.
        dim: Width of a token, T.
        hidden_dim: Width between.

    Example:
        >>> PerTokenFeedForward(num_tokens=3, dim=4, hidden_dim=8)(torch.ones(3, 2, 4)).shape
        torch.Size([3, 2, 4])
    """

    def __init__(self, num_tokens: int, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.up = nn.Parameter(stacked_xavier(num_tokens, dim, hidden_dim))
        self.up_bias = nn.Parameter(torch.zeros(num_tokens, 1, hidden_dim))
        self.down = nn.Parameter(stacked_xavier(num_tokens, hidden_dim, dim))
        self.down_bias = nn.Parameter(torch.zeros(num_tokens, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.down_bias, F.gelu(torch.baddbmm(self.up_bias, x, self.up)), self.down)


class RankMixerBlock(nn.Module):
    """Mixing without weights, then one network a token; both with a residual and a norm after it.

    Computes ``S = LayerNorm(mix(X) + X)`` and ``LayerNorm(FFN_n(S_n) + S_n)``. There are as many slices as tokens, so
    the mixed tokens have the width of the tokens.

    Source: Zhu et al. 2025, "RankMixer", arXiv:2507.15551.

    Args:
        num_tokens: N, which divides T.
        token_dim: T.
        expansion: Hidden width over token width.

    Raises:
        ValueError: ``num_tokens`` does not divide ``token_dim``.
    """

    def __init__(self, num_tokens: int, token_dim: int, expansion: int) -> None:
        super().__init__()
        if token_dim % num_tokens:
            raise ValueError(f"num_tokens must divide token_dim, got num_tokens={num_tokens}, token_dim={token_dim}")
        self.mixed_norm = nn.LayerNorm(token_dim)
        self.feed_forward = PerTokenFeedForward(num_tokens, token_dim, expansion * token_dim)
        self.token_norm = nn.LayerNorm(token_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens ``[N, B, T]``."""
        mixed = self.mixed_norm(mix(tokens, tokens.shape[0]) + tokens)
        return self.token_norm(self.feed_forward(mixed) + mixed)


class RankMixer(nn.Module):
    """Blocks over the tokens of request and ad and one for each attended sequence; the result is the mean token.

    The number of tokens must divide the token's width, so learned tokens that depend on nothing fill it up.

    Source: Zhu et al. 2025, "RankMixer", arXiv:2507.15551. Tokens come from the ranker's groups instead of equal cuts.

    Args:
        behaviour: The sequences as the ad reads them.
        blocks: First to last.
        filling: Learned tokens, 0 or more.
        token_dim: Width of a token, T.
    """

    def __init__(
        self, behaviour: AttendedSequences, blocks: Sequence[RankMixerBlock], filling: int, token_dim: int
    ) -> None:
        super().__init__()
        self.behaviour = behaviour
        self.blocks = nn.ModuleList(blocks)
        self.filling = nn.Parameter(torch.randn(filling, 1, token_dim) * token_dim**-0.5) if filling else None
        self.out_dim = token_dim

    def encode_request(self, tokens: Tensor, events: Sequences) -> RequestState:
        return {"tokens": tokens.transpose(0, 1)} | self.behaviour.encode_request(events)

    def forward(self, state: RequestState, rows: Rows, ad_tokens: Tensor) -> Tensor:
        attended = self.behaviour(state, rows, ad_tokens.transpose(0, 1).flatten(1))
        parts = [rows.repeat(state["tokens"]).transpose(0, 1), ad_tokens, *(token.unsqueeze(0) for token in attended)]
        if self.filling is not None:
            parts.append(self.filling.expand(-1, ad_tokens.shape[1], -1))
        tokens = torch.cat(parts)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens.mean(0)
