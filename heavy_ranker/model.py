"""What is trained: the embedding tables and the ranker on top of them."""

from collections.abc import Mapping

from torch import Tensor, nn

from heavy_ranker.backbones.protocol import RequestState
from heavy_ranker.ranker import HeavyRanker
from heavy_ranker.rows import IndexedRows
from modeling.lookups import SideInputs
from modeling.tables import FeatureTables


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
        inputs = self.tables.forward_sides(sides)
        state = self.encode_request(inputs["query"])
        pair_flat = inputs["pair"].flat if "pair" in inputs else None
        rows = IndexedRows(request_index, len(sides["query"][0]))
        return self.ranker.score_ads(state, rows, inputs["ad"].flat.index_select(0, ad_index), pair_flat)

    def encode_request(self, query: SideInputs) -> RequestState:
        """The request stage on looked-up features."""
        sequences = {name: (events, mask.float()) for name, (events, mask) in query.sequences.items()}
        return self.ranker.encode_request(query.flat, sequences)
