"""DIN and DCN-V2: behaviour read by the ad, crossed with all other tokens, then a plain network."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heavy_ranker.backbones.protocol import RequestState, Sequences
from heavy_ranker.backbones.target_attention import AttendedSequences
from heavy_ranker.rows import Rows


class DinDcn(nn.Module):
    """All tokens and the attended sequences side by side, through cross layers and then an MLP (DCN-V2, stacked).

    Computes ``x_0 = [request ; ad ; attended]``, ``x_(l+1) = x_0 * (U V x_l + b) + x_l`` and ``mlp(x_last)``.

    Source: Zhou et al. 2018, arXiv:1706.06978 (DIN); Wang et al. 2021, arXiv:2008.13535 (DCN-V2).

    Args:
        behaviour: The sequences as the ad reads them.
        cross_layers: Each takes ``x_0`` and ``x``; first to last.
        deep: From the crossed vector to the result.
        out_dim: Width of the result.
    """

    def __init__(
        self, behaviour: AttendedSequences, cross_layers: Sequence[nn.Module], deep: nn.Module, out_dim: int
    ) -> None:
        super().__init__()
        self.behaviour = behaviour
        self.cross_layers = nn.ModuleList(cross_layers)
        self.deep = deep
        self.out_dim = out_dim

    def encode_request(self, tokens: Tensor, events: Sequences) -> RequestState:
        return {"tokens": tokens.transpose(0, 1).flatten(1)} | self.behaviour.encode_request(events)

    def forward(self, state: RequestState, rows: Rows, ad_tokens: Tensor) -> Tensor:
        ad_flat = ad_tokens.transpose(0, 1).flatten(1)
        first = torch.cat([rows.repeat(state["tokens"]), ad_flat, *self.behaviour(state, rows, ad_flat)], dim=1)
        crossed = first
        for layer in self.cross_layers:
            crossed = layer(first, crossed)
        return self.deep(crossed)
