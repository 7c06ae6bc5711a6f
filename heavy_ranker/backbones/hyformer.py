"""HyFormer: query tokens decoded against behaviour sequences, then boosted together with all other tokens."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from heavy_ranker.backbones.protocol import RequestState, Sequences
from heavy_ranker.query_decoding import CrossDecoding
from heavy_ranker.query_generation import OneTokenQueries, QueryGeneration
from heavy_ranker.rows import Rows
from heavy_ranker.sequence import masked_mean
from heavy_ranker.split_mixer import SplitMixer
from heavy_ranker.token_mixer import TokenMixer


class HyFormerLayer(nn.Module):
    """One layer: each sequence is encoded, its query tokens are decoded against it, and a mixer boosts all tokens.

    Query tokens come first among the tokens, ``queries_per_sequence`` for each sequence in the order of ``decoders``.

    Source: HyFormer, arXiv:2601.12681, query decoding and query boosting.

    Args:
        encoders: The encoder of each sequence: events ``[R, L, T]`` and mask to events and mask.
        decoders: The attention of each sequence, same names.
        mixer: Mixes all tokens, or all but the request's.
        queries_per_sequence: Query tokens that read one sequence.
    """

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        decoders: Mapping[str, CrossDecoding],
        mixer: TokenMixer | SplitMixer,
        queries_per_sequence: int,
    ) -> None:
        super().__init__()
        # Lists beside the names: a ModuleDict refuses names such as "items".
        self.sequence_names = tuple(decoders)
        self.encoders = nn.ModuleList(encoders[name] for name in self.sequence_names)
        self.decoders = nn.ModuleList(decoders.values())
        self.mixer = mixer
        self.queries_per_sequence = queries_per_sequence

    def encode(self, events: Sequences) -> dict[str, tuple[Tensor, Tensor]]:
        """Refined events and their mask, by sequence."""
        return {name: encoder(*events[name]) for name, encoder in zip(self.sequence_names, self.encoders, strict=True)}

    def memory(self, events: Sequences) -> RequestState:
        """``<sequence>.keys``, ``.values`` and ``.penalty`` of encoded events."""
        state: RequestState = {}
        for name, decoder in zip(self.sequence_names, self.decoders, strict=True):
            parts = zip(_MEMORY, decoder.memory(*events[name]), strict=True)
            state |= {f"{name}.{part}": tensor for part, tensor in parts}
        return state

    def decode(self, tokens: Tensor, rows: Rows, memory: Mapping[str, Tensor]) -> Tensor:
        """Tokens ``[N, B, T]``, each query attended to its sequence; ``memory`` is of the R requests."""
        size = self.queries_per_sequence
        decoded = [
            decoder(tokens[at * size : (at + 1) * size], rows, *(memory[f"{name}.{part}"] for part in _MEMORY))
            for at, (name, decoder) in enumerate(zip(self.sequence_names, self.decoders, strict=True))
        ]
        return torch.cat([*decoded, tokens[len(decoded) * size :]])

    def forward(self, tokens: Tensor, rows: Rows, memory: Mapping[str, Tensor]) -> Tensor:
        """Boosted tokens ``[N, B, T]``."""
        return self.mixer(self.decode(tokens, rows, memory))


_MEMORY = ("keys", "values", "penalty")


class HyFormer(nn.Module):
    """Query generation and a stack of layers; boosted queries of a layer are the queries of the next.

    Source: HyFormer, arXiv:2601.12681, with the TokenMixer-Large block (arXiv:2602.06563) as its boosting.

    Args:
        generation: Makes the query tokens; a module.
        layers: First to last.
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
        return {"tokens": tokens.transpose(0, 1)} | queries_and_memory(self.generation, self.layers, tokens, events)

    def forward(self, state: RequestState, rows: Rows, ad_tokens: Tensor) -> Tensor:
        queries = self.generation(rows.repeat(state["generation"]), ad_tokens)
        request_tokens = rows.repeat(state["tokens"]).transpose(0, 1)
        tokens = torch.cat([queries, request_tokens, ad_tokens])
        for index, layer in enumerate(self.layers):
            tokens = layer(tokens, rows, layer_state(state, index))
        return tokens.transpose(0, 1).flatten(1)


def queries_and_memory(
    generation: QueryGeneration | OneTokenQueries, layers: Iterable[HyFormerLayer], tokens: Tensor, events: Sequences
) -> RequestState:
    """What the request stage gives to the queries of all layers.

    Args:
        generation: Makes the query tokens.
        layers: First to last.
        tokens: The request's ``[N, R, T]``.
        events: Of token width T, by sequence.

    Returns:
        The request's share of ``generation``, from its tokens and the mean event of each sequence as the first layer
        encodes it; and what queries read, by ``layer<i>.<sequence>.<part>``.
    """
    state: RequestState = {}
    pooled: list[Tensor] = []
    for index, layer in enumerate(layers):
        events = layer.encode(events)
        pooled = pooled or [masked_mean(*events[name]) for name in layer.sequence_names]
        state |= {f"layer{index}.{name}": part for name, part in layer.memory(events).items()}
    request_tokens = tokens.transpose(0, 1)
    pooled_tokens = torch.stack(pooled, dim=1) if pooled else request_tokens[:, :0]
    return {"generation": generation.request_part(request_tokens, pooled_tokens)} | state


def layer_state(state: RequestState, index: int) -> RequestState:
    """The part of one layer, without its prefix."""
    prefix = f"layer{index}."
    return {name.removeprefix(prefix): part for name, part in state.items() if name.startswith(prefix)}
