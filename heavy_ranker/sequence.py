"""Encoders of behaviour sequences, from events and mask to events and mask. Nothing here reads the ad."""

from torch import Tensor, nn

from heavy_ranker.norm import RmsNorm
from heavy_ranker.swiglu import SwiGlu


class EventProjection(nn.Module):
    """Bring event embeddings ``[R, L, E]`` to token width: ``W e + b``, zero where there is no event.

    Args:
        event_dim: Width of an event, the sum of its fields' embeddings, E.
        token_dim: Width of a token, T.
    """

    def __init__(self, event_dim: int, token_dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(event_dim, token_dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, events: Tensor, mask: Tensor) -> Tensor:
        return self.project(events) * mask.unsqueeze(-1)


class SwiGluEncoder(nn.Module):
    """Attention-free encoder: each event is refined alone, by a gated layer with a residual.

    Computes ``h + SwiGLU(RMSNorm(h))`` for each event h. It costs no more per event for long sequences than for short
    ones; what relates events to one another is the decoding that follows.

    Source: the attention-free option of HyFormer, arXiv:2601.12681.

    Args:
        dim: Width of an event, T.
        expansion: The hidden width is ``expansion * dim``.

    Example:
        >>> import torch
        >>> events, mask = SwiGluEncoder(dim=4, expansion=2)(torch.zeros(2, 5, 4), torch.ones(2, 5))
        >>> events.abs().sum().item()
        0.0
    """

    def __init__(self, dim: int, expansion: int) -> None:
        super().__init__()
        self.norm = RmsNorm(dim)
        self.feed_forward = SwiGlu(dim, expansion * dim)

    def forward(self, events: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Events ``[R, L, T]`` refined, and their mask ``[R, L]`` as it was."""
        return events + self.feed_forward(self.norm(events)), mask


def masked_mean(events: Tensor, mask: Tensor) -> Tensor:
    """Mean ``[R, T]`` over the true events of ``[R, L, T]``; zeros for an empty sequence.

    Example:
        >>> import torch
        >>> events = torch.tensor([[[2.0], [4.0], [9.0]], [[5.0], [5.0], [5.0]]])
        >>> masked_mean(events, torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])).tolist()
        [[3.0], [0.0]]
    """
    count = mask.sum(1, keepdim=True).clamp(min=1.0)
    return (events * mask.unsqueeze(-1)).sum(1) / count
