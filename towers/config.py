"""What a two-tower is made of. Presets are in ``presets``; ``build`` turns these values into modules."""

from typing import Literal

import msgspec

from contracts.errors import ConfigError
from contracts.ranges import Count, CountOrZero, ShareBelowOne

Arrangement = Literal["stacked", "parallel"]
TowerSide = Literal["query", "ad"]


class TowerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tower: a projection, experts of cross layers with an MLP, and a gate for each head.

    Attributes:
        width: Width that the flat input is projected to before the experts; all experts cross this vector.
        num_experts: Experts that the gates of all heads mix.
        full_rank_layers: Full-rank cross layers of an expert.
        low_rank_layers: Low-rank cross layers of an expert.
        rank: Rank of the low-rank cross layers.
        arrangement: ``stacked`` puts the low-rank layers behind the full-rank ones; ``parallel`` runs both on the input
            and adds what each contributes.
        hidden_dims: Hidden layers of an expert's MLP.
        gate_hidden_dim: Hidden layer of a gate's MLP.
        dropout: Share of an expert's hidden units dropped while training.

    Raises:
        ConfigError: The rank is larger than the width.
    """

    width: Count
    num_experts: Count
    full_rank_layers: CountOrZero
    low_rank_layers: CountOrZero
    rank: Count
    arrangement: Arrangement = "stacked"
    hidden_dims: tuple[Count, ...]
    gate_hidden_dim: Count
    dropout: ShareBelowOne = 0.0

    def __post_init__(self) -> None:
        if self.low_rank_layers and not 1 <= self.rank <= self.width:
            raise ConfigError(f"rank: expected 1 to the width {self.width}, got {self.rank}")


class TwoTowerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query tower and a pin tower whose embeddings meet in a dot product.

    Attributes:
        query: The tower of a request.
        pin: The tower of an ad.
        head_dim: Width D of one head's vector, before bias and scale are folded in.
    """

    query: TowerConfig
    pin: TowerConfig
    head_dim: Count
