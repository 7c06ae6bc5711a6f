"""What is trained: the embedding tables and the ranker on top of them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor, nn

from heavy_ranker.ranker import HeavyRanker
from heavy_ranker.rows import IndexedRows, Rows
from modeling.precision import to_autocast
from modeling.tables import FeatureTables


class LookedUp(NamedTuple):
    """The dense inputs of R requests, A ads and B rows.

    Args:
        query: Flat features ``[R, F]``.
        sequences: Event embeddings ``[R, L, E]`` and mask ``[R, L]`` (1.0 at an event) of each behaviour sequence.
        ad: Flat features ``[A, F]``.
        pair: Flat features ``[B, F]``; None where the schema has no pair features.
    """

    query: Tensor
    sequences: dict[str, tuple[Tensor, Tensor]]
    ad: Tensor
    pair: Tensor | None


Interact = Callable[[LookedUp, Rows, Tensor], Tensor]
"""``HeavyModel.interact``, or what stands in for it."""


class HeavyModel(nn.Module):
    """Tables and ranker: from encoded ids and floats to per-impression logits.

    Each side is looked up once per distinct row, the request stage runs once per distinct request, and rows repeat as
    they meet in a pair.

    Args:
        tables: With the events of sequences kept.
        ranker: Of the same schema.
    """

    def __init__(self, tables: FeatureTables, ranker: HeavyRanker) -> None:
        super().__init__()
        self.tables = tables
        self.ranker = ranker

    def forward(self, sides: Mapping[str, tuple[Tensor, Tensor]], request_index: Tensor, ad_index: Tensor) -> Tensor:
        """Logits ``[B, K]``.

        Args:
            sides: Ids and floats of ``query`` (R distinct requests), ``ad`` (A distinct ads) and, where the schema has
                pair features, ``pair`` (B rows).
            request_index: ``[B]``, each row's request.
            ad_index: ``[B]``, each row's ad.
        """
        return self.interact(self.look_up(sides), IndexedRows(request_index, len(sides["query"][0])), ad_index)

    def look_up(self, sides: Mapping[str, tuple[Tensor, Tensor]]) -> LookedUp:
        """The dense inputs of all sides; in BF16 under autocast, sequences no longer than the batch's longest.

        Args:
            sides: As for :meth:`forward`.
        """
        inputs = self.tables.forward_sides(sides)
        return LookedUp(
            query=to_autocast(inputs["query"].flat),
            sequences={name: _cut(*sequence) for name, sequence in inputs["query"].sequences.items()},
            ad=to_autocast(inputs["ad"].flat),
            pair=to_autocast(inputs["pair"].flat) if "pair" in inputs else None,
        )

    def interact(self, inputs: LookedUp, rows: Rows, ad_index: Tensor) -> Tensor:
        """Logits ``[B, K]`` from what was looked up: all dense layers, and nothing else, so that it can be compiled.

        In training, where the ranker has M members, each member's own ``[B, M, K]``.
        """
        state = self.ranker.encode_request(inputs.query, inputs.sequences)
        apart = self.training and self.ranker.num_members > 1
        score = self.ranker.member_logits if apart else self.ranker.score_ads
        return score(state, rows, inputs.ad.index_select(0, ad_index), inputs.pair)


def _cut(events: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out the places after the last event of any request: events stand first, and no encoder reads padding."""
    # two places at least: compilers make a case of its own of an axis of one
    longest = max(2, int(mask.sum(1).max())) if len(mask) else mask.shape[1]
    events = to_autocast(events[:, :longest])
    return events, mask[:, :longest].to(events.dtype)
