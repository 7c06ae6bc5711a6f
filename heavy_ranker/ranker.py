"""The heavy ranker in two stages: the request once, and then any number of its ads."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from heavy_ranker.backbones.protocol import Backbone, RequestState, Sequences
from heavy_ranker.ple import ProgressiveExtraction, TaskHeads, impression_logits, mean_of_members
from heavy_ranker.rows import Rows
from heavy_ranker.sequence import EventProjection
from heavy_ranker.token_products import TokenProducts
from heavy_ranker.tokens import GroupTokens

PRODUCTS = "products"


class HeavyRanker(nn.Module):
    """Scores ads with the whole interaction of request and ad, for every task of a chain.

    Two stages, the same in training and in serving: :meth:`encode_request` does all that no ad can change;
    :meth:`score_ads` repeats a request's row only where an ad's row meets it.

    Source: tokens and backbones as in HyFormer (arXiv:2601.12681), PLE (RecSys 2020), and the product of chained tasks
    (ESMM, arXiv:1804.07931).

    Args:
        request_tokens: Tokenisation of the query side's flat features.
        ad_tokens: Tokenisation of the ad side's.
        pair_tokens: Tokenisation of the pair's, or None where the schema has no pair features.
        events: For each sequence the projection of its events to token width.
        backbone: The interaction of tokens and events; a module.
        extraction: Experts and gates.
        heads: One MLP a task.
        num_members: Copies of the chain of tasks that extraction and heads hold, one after the other.
    """

    def __init__(
        self,
        *,
        request_tokens: GroupTokens,
        ad_tokens: GroupTokens,
        pair_tokens: GroupTokens | None,
        events: Mapping[str, EventProjection],
        backbone: Backbone,
        extraction: ProgressiveExtraction,
        heads: TaskHeads,
        num_members: int = 1,
        products: TokenProducts | None = None,
    ) -> None:
        super().__init__()
        self.request_tokens = request_tokens
        self.ad_tokens = ad_tokens
        self.pair_tokens = pair_tokens
        self.sequence_names = tuple(events)
        self.events = nn.ModuleList(events.values())
        self.backbone = backbone
        self.extraction = extraction
        self.heads = heads
        self.num_members = num_members
        self.products = products

    def encode_request(self, flat: Tensor, sequences: Sequences) -> RequestState:
        """The request stage.

        Args:
            flat: The query side's flat features ``[R, F]``.
            sequences: Event embeddings ``[R, L, E]`` and mask of each behaviour sequence.
        """
        projections = zip(self.sequence_names, self.events, strict=True)
        events = {name: (project(*sequences[name]), sequences[name][1]) for name, project in projections}
        tokens = self.request_tokens(flat)
        state = self.backbone.encode_request(tokens, events)
        return state if self.products is None else state | {PRODUCTS: self.products.encode_request(tokens)}

    def score_ads(self, state: RequestState, rows: Rows, ad_flat: Tensor, pair_flat: Tensor | None = None) -> Tensor:
        """The ads' stage.

        Args:
            state: Of R requests.
            rows: Which request each of the B rows belongs to.
            ad_flat: The ad side's flat features ``[B, F]``.
            pair_flat: The pair's flat features ``[B, F]``.

        Returns:
            Per-impression logits ``[B, K]``, tasks in the order of the chain.
        """
        return mean_of_members(self.member_logits(state, rows, ad_flat, pair_flat))

    def member_logits(
        self, state: RequestState, rows: Rows, ad_flat: Tensor, pair_flat: Tensor | None = None
    ) -> Tensor:
        """Per-impression logits ``[B, M, K]`` of each of the M members; arguments as for :meth:`score_ads`."""
        conditional = self.conditional_logits(state, rows, ad_flat, pair_flat)
        num_tasks = conditional.shape[1] // self.num_members
        logits = impression_logits(conditional.reshape(-1, num_tasks))
        return logits.reshape(-1, self.num_members, num_tasks)

    def conditional_logits(
        self, state: RequestState, rows: Rows, ad_flat: Tensor, pair_flat: Tensor | None = None
    ) -> Tensor:
        """Logits ``[B, M * K]`` of each task given the one before, the chain of one member after the other."""
        ad_side = self.ad_tokens(ad_flat)
        if self.pair_tokens is not None:
            ad_side = torch.cat([ad_side, self.pair_tokens(pair_flat)])
        features = self.backbone(state, rows, ad_side)
        if self.products is not None:
            features = torch.cat([features, self.products(state[PRODUCTS], rows, ad_side)], dim=1)
        return self.heads(self.extraction(features)).float()
