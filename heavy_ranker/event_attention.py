"""Encoders in which the events of a sequence read one another. Events stand most recent first."""

import torch
from torch import Tensor, nn

from heavy_ranker.attention import projections
from heavy_ranker.norm import RmsNorm
from heavy_ranker.query_decoding import MASKED_PENALTY
from heavy_ranker.sequence import SwiGluEncoder


class EventAttention(nn.Module):
    """Events read events by multi-head attention that prefers neighbours.

    Computes, for head h, event i that reads and event j that is read,
    ``softmax_j(q_i k_j / sqrt(T / H) - slope_h |i - j|) v_j``; the heads' concatenation is projected by ``W_o``. The
    distance in the sequence enters through the learned slope alone (ALiBi, with slopes ``2^(-8 h / H)`` at first), so
    no length is built in; how long ago an event was is among its fields. Where no event is, nothing is read.

    Source: Vaswani et al. 2017, arXiv:1706.03762; Press et al. 2022, "Train Short, Test Long", arXiv:2108.12409.

    Args:
        dim: Width of an event, T.
        num_heads: H, which divides T.

    Raises:
        ValueError: ``num_heads`` does not divide ``dim``.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.to_query, self.to_key, self.to_value, self.to_out = projections(dim, num_heads)
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.slopes = nn.Parameter(2.0 ** (-8.0 * torch.arange(1, num_heads + 1) / num_heads))

    def forward(self, reading: Tensor, events: Tensor, mask: Tensor) -> Tensor:
        """What the latest events ``reading [R, M, T]`` read of all events ``[R, L, T]`` with mask ``[R, L]``."""
        queries, keys = self._heads(self.to_query(reading)), self._heads(self.to_key(events))
        values = self._heads(self.to_value(events) * mask.unsqueeze(-1))
        places = torch.arange(events.shape[1], device=events.device, dtype=events.dtype)
        distance = (places[: reading.shape[1]].unsqueeze(1) - places).abs()  # [M, L]
        scores = queries @ keys.transpose(2, 3) * self.head_dim**-0.5
        scores = scores - self.slopes.reshape(-1, 1, 1) * distance
        penalty = (mask - 1.0) * MASKED_PENALTY
        weights = torch.softmax(scores + penalty.unsqueeze(1).unsqueeze(1), dim=-1)
        return self.to_out((weights @ values).transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)


class TransformerEncoder(nn.Module):
    """Every event reads every other, then is refined alone.

    Computes ``h = x + attention(RMSNorm(x))`` and ``h + SwiGLU(RMSNorm(h))``, zero where there is no event. No dropout.

    Source: the full-transformer option of HyFormer, arXiv:2601.12681, with the norms of TokenMixer-Large.

    Args:
        dim: Width of an event, T.
        num_heads: Heads of the attention, which divide T.
        expansion: The hidden width is ``expansion * dim``.

    Example:
        >>> events, mask = TransformerEncoder(dim=4, num_heads=2, expansion=2)(torch.ones(2, 5, 4), torch.ones(2, 5))
        >>> events.shape
        torch.Size([2, 5, 4])
    """

    def __init__(self, dim: int, num_heads: int, expansion: int) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(dim)
        self.attention = EventAttention(dim, num_heads)
        self.refine = SwiGluEncoder(dim, expansion)

    def forward(self, events: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Events ``[R, L, T]`` refined, and their mask ``[R, L]`` as it was."""
        normed = self.attention_norm(events)
        events, mask = self.refine(events + self.attention(normed, normed, mask), mask)
        return events * mask.unsqueeze(-1), mask


class LongerEncoder(nn.Module):
    """The latest events read the whole sequence, then are refined alone; only they remain.

    Computes ``h = x[:M] + attention(RMSNorm(x[:M]) over RMSNorm(x))`` and ``h + SwiGLU(RMSNorm(h))``, zero where there
    is no event. Costs what grows with ``M L`` rather than ``L^2``, and later layers see M events; a sequence that is
    not longer than M keeps its length.

    Source: the cross-attention of LONGER (arXiv:2505.04421) as HyFormer (arXiv:2601.12681) uses it, without the merge
    of neighbouring events.

    Args:
        dim: Width of an event, T.
        num_heads: Heads of the attention, which divide T.
        expansion: The hidden width is ``expansion * dim``.
        length: Events that remain, M.

    Example:
        >>> encoder = LongerEncoder(dim=4, num_heads=2, expansion=2, length=3)
        >>> events, mask = encoder(torch.ones(2, 5, 4), torch.ones(2, 5))
        >>> events.shape, mask.shape
        (torch.Size([2, 3, 4]), torch.Size([2, 3]))
    """

    def __init__(self, dim: int, num_heads: int, expansion: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.attention_norm = RmsNorm(dim)
        self.attention = EventAttention(dim, num_heads)
        self.refine = SwiGluEncoder(dim, expansion)

    def forward(self, events: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The latest events ``[R, min(M, L), T]`` of ``[R, L, T]``, and their mask."""
        normed = self.attention_norm(events)
        latest = events[:, : self.length] + self.attention(normed[:, : self.length], normed, mask)
        latest, mask = self.refine(latest, mask[:, : self.length])
        return latest * mask.unsqueeze(-1), mask
