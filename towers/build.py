"""From a schema and a configuration to modules."""

import torch
from torch import nn

from contracts.errors import ConfigError
from contracts.schema import FeatureSchema
from modeling.mlp import glorot_linear
from modeling.tables import FeatureTables
from towers.config import TowerConfig, TowerSide, TwoTowerConfig
from towers.embedding import EmbeddingHeads
from towers.mmoe import CrossStack, Expert, Gate, Mmoe
from towers.tower import Tower
from towers.two_tower import TwoTower


def build_two_tower(
    schema: FeatureSchema, config: TwoTowerConfig, *, table_learning_rate: float = 0.05, seed: int = 0
) -> TwoTower:
    """Build towers and tables with fresh weights.

    Args:
        schema: Fitted; each of its tasks becomes a head.
        config: Sizes.
        table_learning_rate: Of the tables' own optimiser.
        seed: Of all initial weights.

    Raises:
        ConfigError: The schema has pair features, which no tower can read, or lacks a side.
    """
    _check_sides(schema)
    torch.manual_seed(seed)
    tables = FeatureTables(schema, ("query", "ad"), pool_sequences=True, learning_rate=table_learning_rate, seed=seed)
    num_heads = len(schema.tasks)
    return TwoTower(
        tables=tables,
        query_tower=build_tower(config.query, tables.flat_dim("query"), num_heads, config.head_dim, "query"),
        pin_tower=build_tower(config.pin, tables.flat_dim("ad"), num_heads, config.head_dim, "ad"),
    )


def build_tower(config: TowerConfig, flat_dim: int, num_heads: int, head_dim: int, side: TowerSide) -> Tower:
    """Build the tower of one side for a flat input of ``flat_dim``."""
    stem = nn.Sequential(glorot_linear(flat_dim, config.width), nn.LayerNorm(config.width))
    mixture = Mmoe(
        [_expert(config) for _ in range(config.num_experts)],
        [Gate(config.width, config.gate_hidden_dim, config.num_experts) for _ in range(num_heads)],
    )
    heads = EmbeddingHeads(dim=config.width, num_heads=num_heads, head_dim=head_dim, side=side)
    return Tower(stem=stem, mixture=mixture, heads=heads)


def _expert(config: TowerConfig) -> Expert:
    cross = CrossStack(
        config.width,
        full_rank_layers=config.full_rank_layers,
        low_rank_layers=config.low_rank_layers,
        rank=config.rank,
        arrangement=config.arrangement,
    )
    return Expert(cross, dim=config.width, hidden_dims=config.hidden_dims, dropout=config.dropout)


def _check_sides(schema: FeatureSchema) -> None:
    pair = sorted(schema.side_features("pair"))
    if pair:
        raise ConfigError(
            f"features {', '.join(pair)} have side pair; a tower sees one side only, leave them to the heavy ranker"
        )
    for side in ("query", "ad"):
        if not schema.side_features(side):
            raise ConfigError(f"a two-tower needs features of side {side}, the schema has none")
