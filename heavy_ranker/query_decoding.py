"""Query tokens are decoded against the behaviour sequences."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heavy_ranker.attention import projections
from heavy_ranker.norm import RmsNorm
from heavy_ranker.rows import Rows

MASKED_PENALTY = 1e4


class CrossDecoding(nn.Module):
    """Query tokens read one behaviour sequence by multi-head attention with a learned temperature for each head.

    Computes, for head h, ``softmax(q_h k_h / (sqrt(T / H) * temperature_h)) v_h`` with ``q = W_q RMSNorm(query)``,
    ``k = W_k event``, ``v = W_v event``; the heads' concatenation is projected by ``W_o`` and added to the query. The
    temperature is clamped to 0.1..10, so that no head collapses to one event or to the plain mean for good. Over an
    empty sequence the attention is zero and the query passes unchanged.

    Source: Vaswani et al. 2017, arXiv:1706.03762; decoding in HyFormer, arXiv:2601.12681.

    Args:
        dim: Width of a token, T.
        num_heads: H, which divides T.

    Raises:
        ValueError: ``num_heads`` does not divide ``dim``.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.norm = RmsNorm(dim)
        self.to_query, self.to_key, self.to_value, self.to_out = projections(dim, num_heads)
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads))

    def memory(self, events: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What queries read of events ``[R, L, T]`` with mask ``[R, L]``, computed once for a request.

        Returns:
            Keys ``[R, H, T / H, L]``; values ``[R, H, L, T / H]``, zero where there is no event; and a penalty
            ``[R, L]`` on attention, 0 at an event. Over an empty sequence all weights are equal and read zeros.
        """
        shape = (*events.shape[:2], self.num_heads, self.head_dim)
        keys = self.to_key(events).reshape(shape).permute(0, 2, 3, 1)
        values = (self.to_value(events) * mask.unsqueeze(-1)).reshape(shape).permute(0, 2, 1, 3)
        return keys, values, (mask - 1.0) * MASKED_PENALTY

    def forward(self, queries: Tensor, rows: Rows, keys: Tensor, values: Tensor, penalty: Tensor) -> Tensor:
        """Decoded queries ``[Q, B, T]``.

        The queries of all rows of a request meet its keys in one product, and no key is repeated.

        Args:
            queries: ``[Q, B, T]``.
            rows: Which request each of the B rows belongs to.
            keys: Of R requests, as what follows; see :meth:`memory`.
            values: Of R requests.
            penalty: Of R requests.
        """
        grouped = rows.group(F.linear(self.norm(queries), self._scaled_query()))  # [Q, R, C, T]
        num_queries, requests, places, dim = grouped.shape
        heads = grouped.reshape(num_queries, requests, places, self.num_heads, self.head_dim)
        heads = heads.permute(1, 3, 0, 2, 4).reshape(requests, self.num_heads, num_queries * places, self.head_dim)
        weights = torch.softmax(heads @ keys + penalty.reshape(requests, 1, 1, -1), dim=-1)
        decoded = (weights @ values).reshape(requests, self.num_heads, num_queries, places, self.head_dim)
        decoded = decoded.permute(2, 0, 3, 1, 4).reshape(num_queries, requests, places, dim)
        return queries + self.to_out(rows.ungroup(decoded))

    def _scaled_query(self) -> Tensor:
        """``W_q`` with each head's rows over its scale: once for the weights rather than for each query."""
        # The exporter accepts bounds only as float literals.
        scale = self.head_dim**-0.5 / self.temperature.clamp(0.1, 10.0)
        return self.to_query.weight * scale.repeat_interleave(self.head_dim).unsqueeze(1)
