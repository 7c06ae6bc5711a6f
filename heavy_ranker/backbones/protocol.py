"""What every backbone offers: the interaction of tokens and behaviour, in two stages like the ranker around it."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from heavy_ranker.rows import Rows

RequestState = dict[str, Tensor]
"""All that the ads' stage needs of R requests, by name; R is the first axis of every tensor."""

Sequences = Mapping[str, tuple[Tensor, Tensor]]
"""Events ``[R, L, width]`` and mask ``[R, L]`` (1.0 where there is an event) of each behaviour sequence."""


class Backbone(Protocol):
    """An ``nn.Module`` that turns tokens and behaviour into the features that experts and heads read."""

    out_dim: int
    """Width of the features."""

    def encode_request(self, tokens: Tensor, events: Sequences) -> RequestState:
        """All that no ad can change.

        Args:
            tokens: The request's tokens ``[N, R, T]``.
            events: Of token width T, by sequence.
        """
        ...

    def __call__(self, state: RequestState, rows: Rows, ad_tokens: Tensor) -> Tensor:
        """Features ``[B, out_dim]``.

        Args:
            state: What :meth:`encode_request` gave for R requests.
            rows: Which request each of the B rows belongs to.
            ad_tokens: Tokens ``[N, B, T]`` of ad and pair.
        """
        ...
