"""Query tokens, generated once from what is known of request and ad; each then reads one behaviour sequence.

Both sources have the same two stages: a request part ``[R, Q * hidden]``, computed once for a request, and query
tokens ``[Q, B, T]``. The first layer is linear, so it is the sum of a part for the request and one for the ad.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heavy_ranker.swiglu import stacked_xavier


class QueryGeneration(nn.Module):
    """Query tokens, each by a feed-forward network of its own over everything known.

    Computes ``q_i = V_i silu(U_i g + b_i) + c_i`` with ``g = [request tokens ; pooled sequences ; ad tokens]``.

    Source: HyFormer, arXiv:2601.12681, query generation.

    Args:
        num_queries: Q.
        request_dim: Width of what is known of the request: its tokens and pooled sequences, concatenated.
        ad_dim: Width of what is known of the ad, and of the pair: their tokens, concatenated.
        hidden_dim: Width between, for each query.
        token_dim: Width of a token, T.
    """

    def __init__(self, num_queries: int, request_dim: int, ad_dim: int, hidden_dim: int, token_dim: int) -> None:
        super().__init__()
        self.num_queries, self.hidden_dim = num_queries, hidden_dim
        self.request_in = nn.Linear(request_dim, num_queries * hidden_dim)
        self.ad_in = nn.Linear(ad_dim, num_queries * hidden_dim, bias=False)
        bound = (6.0 / (request_dim + ad_dim + hidden_dim)) ** 0.5
        nn.init.uniform_(self.request_in.weight, -bound, bound)
        nn.init.uniform_(self.ad_in.weight, -bound, bound)
        nn.init.zeros_(self.request_in.bias)
        self.out = nn.Parameter(stacked_xavier(num_queries, hidden_dim, token_dim))
        self.out_bias = nn.Parameter(torch.zeros(num_queries, 1, token_dim))

    def request_part(self, tokens: Tensor, pooled: Tensor) -> Tensor:
        """``[R, Q * hidden]`` from the request's tokens ``[R, N, T]`` and its pooled sequences ``[R, S, T]``."""
        return self.request_in(torch.cat([tokens, pooled], dim=1).flatten(1))

    def forward(self, request_part: Tensor, ad_tokens: Tensor) -> Tensor:
        """Query tokens ``[Q, B, T]`` from each row's request part ``[B, Q * hidden]`` and ad tokens ``[N, B, T]``."""
        hidden = F.silu(request_part + self.ad_in(ad_tokens.transpose(0, 1).flatten(1)))
        hidden = hidden.reshape(-1, self.num_queries, self.hidden_dim).transpose(0, 1)
        return torch.baddbmm(self.out_bias, hidden, self.out)


class OneTokenQueries(nn.Module):
    """Query tokens, each from one token of the ad and the pooled sequence that it will read.

    Computes ``q_i = V_i silu(U_i t_(i mod N) + P_i s_i + b_i) + c_i`` with the ad's (then the pair's) tokens
    ``t_0..t_(N-1)`` taken in turn and ``s_i`` the mean event of query i's sequence. The token is one of the ad, so that
    what is read of a sequence depends on the ad; the other tokens meet the query in the mixer that follows.

    Source: iQIYI's CVR model, a single token and the pooled sequence as the query of HyFormer's decoding.

    Args:
        num_queries: Q, equally many for each sequence.
        num_sequences: S, at least 1.
        ad_tokens: Tokens of ad and pair, N.
        hidden_dim: Width between, for each query.
        token_dim: Width of a token, T.
    """

    def __init__(self, num_queries: int, num_sequences: int, ad_tokens: int, hidden_dim: int, token_dim: int) -> None:
        super().__init__()
        self.num_queries, self.hidden_dim = num_queries, hidden_dim
        query = torch.arange(num_queries)
        self.register_buffer("sequence_of", query // (num_queries // num_sequences), persistent=False)
        self.register_buffer("token_of", query % ad_tokens, persistent=False)
        joint = stacked_xavier(num_queries, 2 * token_dim, hidden_dim)
        self.pooled_in = nn.Parameter(joint[:, :token_dim].clone())
        self.token_in = nn.Parameter(joint[:, token_dim:].clone())
        self.bias = nn.Parameter(torch.zeros(num_queries, 1, hidden_dim))
        self.out = nn.Parameter(stacked_xavier(num_queries, hidden_dim, token_dim))
        self.out_bias = nn.Parameter(torch.zeros(num_queries, 1, token_dim))

    def request_part(self, tokens: Tensor, pooled: Tensor) -> Tensor:
        """As :meth:`QueryGeneration.request_part`; the request's own tokens are not read."""
        pooled = pooled.index_select(1, self.sequence_of).transpose(0, 1)
        return torch.baddbmm(self.bias, pooled, self.pooled_in).transpose(0, 1).flatten(1)

    def forward(self, request_part: Tensor, ad_tokens: Tensor) -> Tensor:
        """As :meth:`QueryGeneration.forward`."""
        request_part = request_part.reshape(-1, self.num_queries, self.hidden_dim).transpose(0, 1)
        hidden = F.silu(request_part + torch.bmm(ad_tokens.index_select(0, self.token_of), self.token_in))
        return torch.baddbmm(self.out_bias, hidden, self.out)
