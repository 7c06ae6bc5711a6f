"""A token mixer in which the request's tokens never read the ad's: their part is computed once for a request."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heavy_ranker.norm import RmsNorm
from heavy_ranker.rows import Rows
from heavy_ranker.swiglu import DOWN_INIT_SCALE, PerTokenSwiGlu, stacked_xavier
from heavy_ranker.token_mixer import TokenMixer, mix, revert


class SplitMixer(nn.Module):
    """The token mixer with masked weights: request tokens read request tokens, all others read every token.

    With ``P = [P_r ; P_a]`` a mixed token's slices of the request's tokens and of the others, each part normalised
    alone, the mixing layer of :class:`~heavy_ranker.token_mixer.TokenMixer` becomes::

        P_r' = P_r + down_rr(silu(gate_rr P_r) * up_rr P_r)                                      once for a request
        P_a' = P_a + down_aa(silu(gate_ra P_r + gate_aa P_a) * (up_ra P_r + up_aa P_a))

    which is one full layer whose weights from the other tokens to the request's are zero. ``gate_ra P_r`` and
    ``up_ra P_r`` too are computed once for a request. The second gated layer is each token's own, as before. So the
    request's tokens are the same for all of its ads, however many such mixers follow one another.

    Source: UG-Sep, arXiv:2602.10455, the masked mixing and the split of the per-token layers; the block is
    TokenMixer-Large's, arXiv:2602.06563.

    Args:
        request_tokens: N_r.
        ad_tokens: All others, queries among them, N_a.
        token_dim: T.
        num_slices: H, which divides T.
        expansion: Hidden width over input width, in all gated layers.

    Raises:
        ValueError: ``num_slices`` does not divide ``token_dim``.
    """

    def __init__(self, request_tokens: int, ad_tokens: int, token_dim: int, num_slices: int, expansion: int) -> None:
        super().__init__()
        self.request = TokenMixer(request_tokens, token_dim, num_slices, expansion)
        request_dim, ad_dim = (tokens * token_dim // num_slices for tokens in (request_tokens, ad_tokens))
        hidden_dim = expansion * ad_dim
        self.num_slices = num_slices
        self.mixed_norm = RmsNorm(num_slices, 1, ad_dim)
        gate, up = (stacked_xavier(num_slices, request_dim + ad_dim, hidden_dim) for _ in range(2))
        self.request_gate, self.gate = (nn.Parameter(part.clone()) for part in gate.split((request_dim, ad_dim), 1))
        self.request_up, self.up = (nn.Parameter(part.clone()) for part in up.split((request_dim, ad_dim), 1))
        self.down = nn.Parameter(stacked_xavier(num_slices, hidden_dim, ad_dim) * DOWN_INIT_SCALE)
        self.token_norm = RmsNorm(ad_tokens, 1, token_dim)
        self.token_layer = PerTokenSwiGlu(ad_tokens, token_dim, expansion * token_dim)

    def request_part(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Once for a request: its tokens ``[N_r, R, T]`` boosted, and what they add to the others' gate and up.

        Returns:
            Tokens ``[N_r, R, T]``; gate and up ``[R, H, hidden]``.
        """
        normed = self.request.mixed_norm(mix(tokens, self.num_slices))
        gate, up = (torch.bmm(normed, weight).transpose(0, 1) for weight in (self.request_gate, self.request_up))
        return self.request(tokens), gate, up

    def forward(self, tokens: Tensor, rows: Rows, gate: Tensor, up: Tensor) -> Tensor:
        """Boosted tokens ``[N_a, B, T]``; ``gate`` and ``up`` are of R requests, ``[R, H, hidden]``."""
        mixed = mix(tokens, self.num_slices)
        normed = self.mixed_norm(mixed)
        gate, up = rows.add(torch.bmm(normed, self.gate), gate), rows.add(torch.bmm(normed, self.up), up)
        mixed = mixed + torch.bmm(F.silu(gate) * up, self.down)
        return tokens + self.token_layer(self.token_norm(revert(mixed, tokens.shape[0])))
