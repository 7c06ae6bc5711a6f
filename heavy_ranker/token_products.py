"""Products of request tokens with ad tokens, beside whatever a backbone makes of them."""

import torch
from torch import Tensor, nn

from heavy_ranker.norm import EPSILON
from heavy_ranker.rows import Rows


class TokenProducts(nn.Module):
    """The scaled dot product of every request token with every ad token, in each of H slices.

    Computes ``<u_n[h], a_m[h]> / sqrt(T / H)`` for request token n, ad token m and slice h: how well a taste meets an
    ad. Networks of sums learn such a product from far more examples than its being there takes; several slices let the
    experts behind it take the best of several tastes.

    ``normed`` scales every token to unit root mean square first. A token of a few small embeddings is many times
    shorter than one of a dense vector; its products are then as small, and Adam, which moves all weights alike, learns
    from them as much more slowly.

    Source: the interaction of DLRM (Naumov et al. 2019, arXiv:1906.00091), in slices.

    Args:
        num_request_tokens: N.
        num_ad_tokens: M, of ad and pair.
        token_dim: T.
        num_heads: H, which divides T.
        normed: Scale tokens first.

    Raises:
        ValueError: ``num_heads`` does not divide ``token_dim``.
    """

    def __init__(
        self, num_request_tokens: int, num_ad_tokens: int, token_dim: int, num_heads: int, *, normed: bool = False
    ) -> None:
        super().__init__()
        if token_dim % num_heads:
            raise ValueError(f"num_heads must divide token_dim, got num_heads={num_heads}, token_dim={token_dim}")
        self.num_heads, self.head_dim = num_heads, token_dim // num_heads
        self.normed = normed
        self.out_dim = num_heads * num_request_tokens * num_ad_tokens

    def encode_request(self, tokens: Tensor) -> Tensor:
        """The request's half ``[R, H, N, T / H]`` of tokens ``[N, R, T]``."""
        return (
            self._scaled(tokens).unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3) * self.head_dim**-0.5
        )

    def forward(self, request: Tensor, rows: Rows, ad_tokens: Tensor) -> Tensor:
        """Products ``[B, H * N * M]`` of the request's half with ad tokens ``[M, B, T]``."""
        grouped = rows.group(self._scaled(ad_tokens)).unflatten(
            3, (self.num_heads, self.head_dim)
        )  # [M, R, C, H, T / H]
        num_ad_tokens, _, width = grouped.shape[:3]
        ads = grouped.permute(1, 3, 4, 2, 0).flatten(3, 4)  # [R, H, T / H, C * M]
        products = (request @ ads).unflatten(3, (width, num_ad_tokens))  # [R, H, N, C, M]
        return rows.ungroup(products.permute(0, 3, 1, 2, 4).flatten(2, 4).unsqueeze(0)).squeeze(0)

    def _scaled(self, tokens: Tensor) -> Tensor:
        return tokens * torch.rsqrt(tokens.square().mean(-1, keepdim=True) + EPSILON) if self.normed else tokens
