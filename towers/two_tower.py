"""The two towers with their embedding tables, as they are trained.

Shapes: R requests, A distinct ads, N pairs, H heads, D width of a head's vector.
"""

from torch import Tensor, nn

from modeling.precision import to_autocast
from modeling.tables import FeatureTables
from towers.embedding import pair_logits
from towers.tower import Tower

Domains = tuple[Tensor, Tensor]
"""Number of the domain of each request, int64 [R], and of each ad, int64 [A]."""


class TwoTower(nn.Module):
    """Query tower and pin tower whose embeddings meet in one dot product a head.

    A step computes each tower once per distinct row of its side; pairs come into being only in the dot product.

    Args:
        tables: Tables of the sides ``query`` and ``ad``, with pooled sequences.
        query_tower: Embeds requests.
        pin_tower: Embeds ads.
    """

    def __init__(self, *, tables: FeatureTables, query_tower: Tower, pin_tower: Tower) -> None:
        super().__init__()
        self.tables = tables
        self.query_tower = query_tower
        self.pin_tower = pin_tower

    def forward(
        self,
        query: tuple[Tensor, Tensor],
        ad: tuple[Tensor, Tensor],
        request_index: Tensor,
        ad_index: Tensor,
        domains: Domains | None = None,
    ) -> Tensor:
        """Per-impression logits of pairs.

        Args:
            query: Encoded requests: ids [R, num_ids] and floats [R, num_floats].
            ad: Encoded ads: ids [A, num_ids] and floats [A, num_floats].
            request_index: Row of ``query`` of each pair, int64 [N].
            ad_index: Row of ``ad`` of each pair, int64 [N].
            domains: Of requests and ads; for a model with domains, and for no other.

        Returns:
            fp32 logits [N, H].
        """
        return pair_logits(*self.embed(query, ad, domains), request_index, ad_index)

    def embed(
        self, query: tuple[Tensor, Tensor], ad: tuple[Tensor, Tensor], domains: Domains | None = None
    ) -> tuple[Tensor, Tensor]:
        """Query embeddings [R, H, D+2] and pin embeddings [A, H, D+2]."""
        return self.embed_flat(*self.look_up(query, ad), domains)

    def look_up(self, query: tuple[Tensor, Tensor], ad: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The flat inputs of both towers, [R, F] and [A, F], each side with its own F; in BF16 under autocast."""
        inputs = self.tables.forward_sides({"query": query, "ad": ad})
        return to_autocast(inputs["query"].flat), to_autocast(inputs["ad"].flat)

    def embed_flat(self, query: Tensor, ad: Tensor, domains: Domains | None = None) -> tuple[Tensor, Tensor]:
        """The embeddings from what was looked up: all dense layers, and nothing else, so that it can be compiled."""
        of_queries, of_ads = domains or (None, None)
        return self.query_tower(query, of_queries), self.pin_tower(ad, of_ads)
