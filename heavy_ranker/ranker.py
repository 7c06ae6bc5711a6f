"""The heavy ranker: HyFormer blocks in two stages, the request once and then any number of its ads."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from heavy_ranker.ple import ProgressiveExtraction, TaskHeads, impression_logits
from heavy_ranker.query_decoding import CrossDecoding, QueryGeneration
from heavy_ranker.sequence import EventProjection, SwiGluEncoder, masked_mean
from heavy_ranker.token_mixer import TokenMixer
from heavy_ranker.tokens import GroupTokens

RequestState = dict[str, Tensor]
"""All that the ads' stage needs of R requests, by name; R is the first axis of every tensor."""

Sequences = Mapping[str, tuple[Tensor, Tensor]]
"""Event embeddings ``[R, L, E]`` and mask ``[R, L]`` (1.0 where there is an event) of each behaviour sequence."""


class HyFormerLayer(nn.Module):
    """One layer: each sequence is encoded, its query tokens are decoded against it, and a mixer boosts all tokens.

    Query tokens come first among the tokens, ``num_queries / S`` for each sequence in the order of ``decoders``.

    Source: HyFormer, arXiv:2601.12681, query decoding and query boosting.

    Args:
        encoders: The encoder of each sequence.
        decoders: The attention of each sequence, same names.
        mixer: Mixes all tokens.
        queries_per_sequence: Query tokens that read one sequence.
    """

    def __init__(
        self,
        encoders: Mapping[str, SwiGluEncoder],
        decoders: Mapping[str, CrossDecoding],
        mixer: TokenMixer,
        queries_per_sequence: int,
    ) -> None:
        super().__init__()
        # Lists beside the names: a ModuleDict refuses names such as "items".
        self.sequence_names = tuple(decoders)
        self.encoders = nn.ModuleList(encoders[name] for name in self.sequence_names)
        self.decoders = nn.ModuleList(decoders.values())
        self.mixer = mixer
        self.queries_per_sequence = queries_per_sequence

    def encode(self, events: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Refined events ``[R, L, T]`` of each sequence."""
        return {name: encoder(events[name]) for name, encoder in zip(self.sequence_names, self.encoders, strict=True)}

    def keys_values(self, events: Mapping[str, Tensor]) -> RequestState:
        """``<sequence>.keys`` and ``<sequence>.values`` of encoded events."""
        state: RequestState = {}
        for name, decoder in zip(self.sequence_names, self.decoders, strict=True):
            state[f"{name}.keys"], state[f"{name}.values"] = decoder.keys_values(events[name])
        return state

    def forward(self, tokens: Tensor, memory: Mapping[str, Tensor]) -> Tensor:
        """Boosted tokens ``[N, B, T]``; ``memory`` holds keys, values and masks of the B rows."""
        size = self.queries_per_sequence
        decoded = [
            decoder(tokens[at * size : (at + 1) * size], *(memory[f"{name}.{part}"] for part in _MEMORY))
            for at, (name, decoder) in enumerate(zip(self.sequence_names, self.decoders, strict=True))
        ]
        return self.mixer(torch.cat([*decoded, tokens[len(decoded) * size :]]))


_MEMORY = ("keys", "values", "mask")


class HeavyRanker(nn.Module):
    """Scores ads with the whole interaction of request and ad, for every task of a chain.

    Two stages, the same in training and in serving: :meth:`encode_request` does all that no ad can change (the
    request's tokens, sequence encodings, keys, values, and its part of query generation); :meth:`score_ads` repeats a
    request's row only where an ad's row meets it.

    Source: HyFormer (arXiv:2601.12681) with the TokenMixer-Large block (arXiv:2602.06563) as its boosting, PLE (RecSys
    2020) and the product of chained tasks (ESMM, arXiv:1804.07931).

    Args:
        request_tokens: Tokenisation of the query side's flat features.
        ad_tokens: Tokenisation of the ad side's.
        pair_tokens: Tokenisation of the pair's, or None where the schema has no pair features.
        events: For each sequence the projection of its events to token width.
        generation: Query generation.
        layers: HyFormer layers, first to last.
        extraction: Experts and gates.
        heads: One MLP a task.
    """

    def __init__(
        self,
        *,
        request_tokens: GroupTokens,
        ad_tokens: GroupTokens,
        pair_tokens: GroupTokens | None,
        events: Mapping[str, EventProjection],
        generation: QueryGeneration,
        layers: list[HyFormerLayer],
        extraction: ProgressiveExtraction,
        heads: TaskHeads,
    ) -> None:
        super().__init__()
        self.request_tokens = request_tokens
        self.ad_tokens = ad_tokens
        self.pair_tokens = pair_tokens
        self.sequence_names = tuple(events)
        self.events = nn.ModuleList(events.values())
        self.generation = generation
        self.layers = nn.ModuleList(layers)
        self.extraction = extraction
        self.heads = heads

    def encode_request(self, flat: Tensor, sequences: Sequences) -> RequestState:
        """The request stage.

        Args:
            flat: The query side's flat features ``[R, F]``.
            sequences: Events and mask of each behaviour sequence.
        """
        tokens = self.request_tokens(flat).transpose(0, 1)
        projections = zip(self.sequence_names, self.events, strict=True)
        events = {name: project(*sequences[name]) for name, project in projections}
        state: RequestState = {"tokens": tokens}
        pooled: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            events = layer.encode(events)
            pooled = pooled or [masked_mean(events[name], sequences[name][1]) for name in events]
            state |= {f"layer{index}.{name}": part for name, part in layer.keys_values(events).items()}
        state |= {f"{name}.mask": sequences[name][1] for name in events}
        state["generation"] = self.generation.request_part(torch.cat([tokens.flatten(1), *pooled], dim=1))
        return state

    def score_ads(
        self, state: RequestState, request_index: Tensor, ad_flat: Tensor, pair_flat: Tensor | None = None
    ) -> Tensor:
        """The ads' stage.

        Args:
            state: Of R requests.
            request_index: ``[B]`` int64, the request's row in ``state`` for each row.
            ad_flat: The ad side's flat features ``[B, F]``.
            pair_flat: The pair's flat features ``[B, F]``.

        Returns:
            Per-impression logits ``[B, K]``, tasks in the order of the chain.
        """
        conditional = self.conditional_logits(state, request_index, ad_flat, pair_flat)
        return impression_logits(conditional)

    def conditional_logits(
        self, state: RequestState, request_index: Tensor, ad_flat: Tensor, pair_flat: Tensor | None = None
    ) -> Tensor:
        """Logits ``[B, K]`` of each task given the one before; arguments as for :meth:`score_ads`."""
        ad_side = self.ad_tokens(ad_flat)
        if self.pair_tokens is not None:
            ad_side = torch.cat([ad_side, self.pair_tokens(pair_flat)])
        rows = {name: tensor.index_select(0, request_index) for name, tensor in state.items()}
        queries = self.generation(rows["generation"], ad_side.transpose(0, 1).flatten(1))
        tokens = torch.cat([queries, rows["tokens"].transpose(0, 1), ad_side])
        masks = {f"{name}.mask": rows[f"{name}.mask"] for name in self.sequence_names}
        for index, layer in enumerate(self.layers):
            prefix = f"layer{index}."
            memory = {name.removeprefix(prefix): part for name, part in rows.items() if name.startswith(prefix)}
            tokens = layer(tokens, memory | masks)
        return self.heads(self.extraction(tokens.transpose(0, 1).flatten(1))).float()
