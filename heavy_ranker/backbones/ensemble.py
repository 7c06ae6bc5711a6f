"""Several backbones side by side."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from heavy_ranker.backbones.protocol import Backbone, RequestState, Sequences
from heavy_ranker.rows import Rows


class Ensemble(nn.Module):
    """Backbones on the same tokens and events, their features concatenated in front of the same experts and heads.

    Source: as the ensembles of interaction modules in DHEN, arXiv:2203.11014, one layer deep.

    Args:
        members: Modules, by a name that prefixes their part of the state.
    """

    def __init__(self, members: Mapping[str, Backbone]) -> None:
        super().__init__()
        self.names = tuple(members)
        self.members = nn.ModuleList(members.values())
        self.out_dim = sum(member.out_dim for member in members.values())

    def encode_request(self, tokens: Tensor, events: Sequences) -> RequestState:
        return {
            f"{name}.{part}": tensor
            for name, member in zip(self.names, self.members, strict=True)
            for part, tensor in member.encode_request(tokens, events).items()
        }

    def forward(self, state: RequestState, rows: Rows, ad_tokens: Tensor) -> Tensor:
        features = [
            member(_own(state, name), rows, ad_tokens) for name, member in zip(self.names, self.members, strict=True)
        ]
        return torch.cat(features, dim=1)


def _own(state: RequestState, name: str) -> RequestState:
    prefix = f"{name}."
    return {part.removeprefix(prefix): tensor for part, tensor in state.items() if part.startswith(prefix)}
