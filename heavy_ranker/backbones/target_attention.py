"""Behaviour as the ad sees it: each event weighted by its fit to the ad. Shared by all backbones but HyFormer."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from heavy_ranker.backbones.protocol import RequestState, Sequences
from heavy_ranker.rows import Rows
from modeling.mlp import glorot_linear


class TargetAttention(nn.Module):
    """The sum of a sequence's events, each weighted by a small network over event and target.

    Computes ``sum_l a(e_l, t) e_l`` with ``a(e, t) = v silu(W [e ; t ; e * t] + b) + c``. DIN's unit also reads
    ``e - t``; being linear in the first two, it adds nothing to the first layer. The weights are not normalised, as in
    DIN: how often somebody did something alike is kept. ``W_e e + b`` is computed once for a request.

    Source: Zhou et al. 2018, "Deep Interest Network", arXiv:1706.06978; SiLU in the place of Dice.

    Args:
        dim: Width of event and target, T.
        hidden_dim: Width of the network's hidden layer.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.event_in = nn.Linear(dim, hidden_dim)
        self.target_in = nn.Linear(dim, hidden_dim, bias=False)
        self.product_in = nn.Linear(dim, hidden_dim, bias=False)
        bound = (6.0 / (3 * dim + hidden_dim)) ** 0.5
        for linear in (self.event_in, self.target_in, self.product_in):
            nn.init.uniform_(linear.weight, -bound, bound)
        nn.init.zeros_(self.event_in.bias)
        self.out = glorot_linear(hidden_dim, 1)

    def memory(self, events: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Events ``[R, L, T]``, zero where there is none, and the event's half of the hidden layer."""
        events = events * mask.unsqueeze(-1)
        return events, self.event_in(events)

    def forward(self, targets: Tensor, rows: Rows, events: Tensor, hidden: Tensor) -> Tensor:
        """What each of the targets ``[B, T]`` reads, ``[B, T]``; ``events`` and ``hidden`` are of R requests."""
        targets, events, hidden = rows.meet(targets, events, hidden)
        product = targets.unsqueeze(2) * events.unsqueeze(1)  # [G, M, L, T]
        known = hidden.unsqueeze(1) + self.target_in(targets).unsqueeze(2)
        weights = self.out(F.silu(known + self.product_in(product))).squeeze(-1)  # [G, M, L]
        return (weights @ events).flatten(0, 1)


class AttendedSequences(nn.Module):
    """All behaviour sequences, encoded once for a request and read by one target made of the ad's tokens.

    Args:
        encoders: The encoder of each sequence: events ``[R, L, T]`` and mask to events and mask.
        ad_dim: Width of the tokens of ad and pair, concatenated.
        token_dim: Width of a token, T.
        hidden_dim: Hidden width of each sequence's attention.
    """

    def __init__(self, encoders: Mapping[str, nn.Module], ad_dim: int, token_dim: int, hidden_dim: int) -> None:
        super().__init__()
        # Lists beside the names: a ModuleDict refuses names such as "items".
        self.sequence_names = tuple(encoders)
        self.encoders = nn.ModuleList(encoders.values())
        self.attentions = nn.ModuleList(TargetAttention(token_dim, hidden_dim) for _ in encoders)
        self.target = glorot_linear(ad_dim, token_dim) if encoders else None

    def encode_request(self, events: Sequences) -> RequestState:
        """``<sequence>.events`` and ``<sequence>.hidden``."""
        state: RequestState = {}
        for name, encoder, attention in zip(self.sequence_names, self.encoders, self.attentions, strict=True):
            state[f"{name}.events"], state[f"{name}.hidden"] = attention.memory(*encoder(*events[name]))
        return state

    def forward(self, state: RequestState, rows: Rows, ad_flat: Tensor) -> list[Tensor]:
        """A token ``[B, T]`` for each sequence, from the ad's tokens side by side ``[B, ad_dim]``."""
        if self.target is None:
            return []
        target = self.target(ad_flat)
        return [
            attention(target, rows, state[f"{name}.events"], state[f"{name}.hidden"])
            for name, attention in zip(self.sequence_names, self.attentions, strict=True)
        ]
