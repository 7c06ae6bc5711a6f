"""HyFormer whose request tokens never read the ad's, so that every layer's share of them is computed once a request."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heavy_ranker.backbones.hyformer import HyFormerLayer, layer_state, queries_and_memory
from heavy_ranker.backbones.protocol import RequestState, Sequences
from heavy_ranker.query_generation import OneTokenQueries, QueryGeneration
from heavy_ranker.rows import Rows


class RequestOnlyHyFormer(nn.Module):
    """As :class:`~heavy_ranker.backbones.hyformer.HyFormer`, with split mixers.

    The request's tokens run through all layers in the request stage; what they add to the layers of an ad's tokens and
    queries waits in the state, as ``layer<i>.gate`` and ``layer<i>.up``.

    Source: HyFormer, arXiv:2601.12681; UG-Sep, arXiv:2602.10455.

    Args:
        generation: Makes the query tokens; a module.
        layers: First to last, each with a :class:`~heavy_ranker.split_mixer.SplitMixer`.
        num_tokens: Of queries, request, ad and pair together.
        token_dim: Width of a token, T.
    """

    def __init__(
        self,
        generation: QueryGeneration | OneTokenQueries,
        layers: Sequence[HyFormerLayer],
        num_tokens: int,
        token_dim: int,
    ) -> None:
        super().__init__()
        self.generation = generation
        self.layers = nn.ModuleList(layers)
        self.out_dim = num_tokens * token_dim

    def encode_request(self, tokens: Tensor, events: Sequences) -> RequestState:
        state = queries_and_memory(self.generation, self.layers, tokens, events)
        for index, layer in enumerate(self.layers):
            tokens, state[f"layer{index}.gate"], state[f"layer{index}.up"] = layer.mixer.request_part(tokens)
        return state | {"tokens": tokens.transpose(0, 1)}

    def forward(self, state: RequestState, rows: Rows, ad_tokens: Tensor) -> Tensor:
        tokens = torch.cat([self.generation(rows.repeat(state["generation"]), ad_tokens), ad_tokens])
        for index, layer in enumerate(self.layers):
            own = layer_state(state, index)
            tokens = layer.mixer(layer.decode(tokens, rows, own), rows, own["gate"], own["up"])
        return torch.cat([rows.repeat(state["tokens"]).flatten(1), tokens.transpose(0, 1).flatten(1)], dim=1)
