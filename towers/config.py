"""What a two-tower is made of. Presets are in ``presets``; ``build`` turns these values into modules."""

from typing import Literal

import msgspec

from contracts.errors import ConfigError
from contracts.ranges import Few, FewOrNone, ShareBelowOne, Width

Arrangement = Literal["stacked", "parallel"]
TowerKind = Literal["mmoe_dcn", "mlp"]
TowerSide = Literal["query", "ad"]


class TowerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tower: a projection of its flat input, and what refines it to one representation a head.

    ``mmoe_dcn`` mixes experts of cross layers with an MLP, by a gate for each head. ``mlp`` is the conventional tower:
    one stack of hidden layers, whose last is what all heads project from.

    Args:
        kind: Which of the two. What stands below ``dropout`` is of ``mmoe_dcn`` alone.
        width: Width that the flat input is projected to; experts cross this vector.
        hidden_dims: Hidden layers of an expert's MLP, or of the conventional tower.
        dropout: Share of hidden units dropped while training.
        num_experts: Experts that the gates of all heads mix; with domains, those that all domains share.
        domain_experts: Experts that each domain has of its own beside them.
        full_rank_layers: Full-rank cross layers of an expert.
        low_rank_layers: Low-rank cross layers of an expert.
        rank: Rank of the low-rank cross layers.
        arrangement: ``stacked`` puts the low-rank layers behind the full-rank ones; ``parallel`` runs both on the input
            and adds what each contributes.
        gate_hidden_dim: Hidden layer of a gate's MLP.

    Raises:
        ConfigError: The rank is larger than the width, or a conventional tower has experts or no hidden layer.
    """

    kind: TowerKind = "mmoe_dcn"
    width: Width
    hidden_dims: tuple[Width, ...]
    dropout: ShareBelowOne = 0.0
    num_experts: Few = 1
    domain_experts: FewOrNone = 0
    full_rank_layers: FewOrNone = 0
    low_rank_layers: FewOrNone = 0
    rank: Width = 1
    arrangement: Arrangement = "stacked"
    gate_hidden_dim: Width = 32

    def __post_init__(self) -> None:
        if self.low_rank_layers and not 1 <= self.rank <= self.width:
            raise ConfigError(f"rank: expected 1 to the width {self.width}, got {self.rank}")
        if self.kind == "mlp":
            self._check_mlp()

    def _check_mlp(self) -> None:
        if not self.hidden_dims:
            raise ConfigError("hidden_dims: expected a layer or more for kind mlp, got none")
        expected = {"num_experts": 1, "domain_experts": 0, "full_rank_layers": 0, "low_rank_layers": 0}
        for name, value in expected.items():
            if getattr(self, name) != value:
                raise ConfigError(f"{name}: expected {value} for kind mlp, got {getattr(self, name)}")


class TwoTowerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query tower and a pin tower whose embeddings meet in a dot product.

    Args:
        query: The tower of a request.
        pin: The tower of an ad.
        head_dim: Width D of one head's vector, before bias and scale are folded in.
        domains: Scenarios that one model serves together, in the order of their numbers; none for a model of one
            scenario.

    Raises:
        ConfigError: Domains are fewer than two or repeat, or a tower cannot tell them apart.
    """

    query: TowerConfig
    pin: TowerConfig
    head_dim: Width
    domains: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.domains) == 1 or len(set(self.domains)) < len(self.domains):
            raise ConfigError(f"domains: expected none, or two and more that differ, got {list(self.domains)}")
        for side in ("query", "pin"):
            tower: TowerConfig = getattr(self, side)
            if self.domains and tower.kind != "mmoe_dcn":
                raise ConfigError(f"{side}.kind: expected mmoe_dcn with domains, got {tower.kind}")
            if tower.domain_experts and not self.domains:
                raise ConfigError(f"{side}.domain_experts: expected 0 without domains, got {tower.domain_experts}")
