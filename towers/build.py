"""From a schema and a configuration to modules."""

import torch
from torch import nn

from contracts.errors import ConfigError
from contracts.schema import FeatureSchema
from modeling.mlp import glorot_linear, mlp
from modeling.tables import FeatureTables
from towers.config import TowerConfig, TowerSide, TwoTowerConfig
from towers.embedding import EmbeddingHeads
from towers.mlp import SharedRepresentation
from towers.mmoe import CrossStack, Expert, Gate, Mmoe
from towers.multi_domain import DomainGate, DomainStem, MultiDomainMmoe
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
    heads, dim, domains = len(schema.tasks), config.head_dim, len(config.domains)
    return TwoTower(
        tables=tables,
        query_tower=build_tower(config.query, tables.flat_dim("query"), heads, dim, "query", num_domains=domains),
        pin_tower=build_tower(config.pin, tables.flat_dim("ad"), heads, dim, "ad", num_domains=domains),
    )


def build_tower(
    config: TowerConfig, flat_dim: int, num_heads: int, head_dim: int, side: TowerSide, *, num_domains: int = 0
) -> Tower:
    """Build the tower of one side for a flat input of ``flat_dim``."""
    if config.kind == "mlp":
        stem, mixture, dim = _mlp_parts(config, flat_dim, num_heads)
    elif num_domains:
        stem, mixture, dim = _multi_domain_parts(config, flat_dim, num_heads, num_domains)
    else:
        stem, mixture, dim = _mmoe_parts(config, flat_dim, num_heads)
    heads = EmbeddingHeads(dim=dim, num_heads=num_heads, head_dim=head_dim, side=side)
    return Tower(stem=stem, mixture=mixture, heads=heads)


Parts = tuple[nn.Module, nn.Module, int]
"""Stem, mixture, and the width of a head's representation."""


def _mmoe_parts(config: TowerConfig, flat_dim: int, num_heads: int) -> Parts:
    stem = nn.Sequential(glorot_linear(flat_dim, config.width), nn.LayerNorm(config.width))
    gates = [_gate(config) for _ in range(num_heads)]
    return stem, Mmoe([_expert(config) for _ in range(config.num_experts)], gates), config.width


def _multi_domain_parts(config: TowerConfig, flat_dim: int, num_heads: int, num_domains: int) -> Parts:
    stem = DomainStem(glorot_linear(flat_dim, config.width), num_domains)
    mixture = MultiDomainMmoe(
        [_expert(config) for _ in range(config.num_experts)],
        [[_expert(config) for _ in range(config.domain_experts)] for _ in range(num_domains)],
        [DomainGate(_gate(config), num_domains) for _ in range(num_heads)],
    )
    return stem, mixture, config.width


def _mlp_parts(config: TowerConfig, flat_dim: int, num_heads: int) -> Parts:
    stem = nn.Sequential(glorot_linear(flat_dim, config.width), nn.LayerNorm(config.width), nn.ReLU())
    hidden = mlp(config.width, config.hidden_dims, dropout=config.dropout)
    return stem, SharedRepresentation(hidden, num_heads), config.hidden_dims[-1]


def _gate(config: TowerConfig) -> Gate:
    return Gate(config.width, config.gate_hidden_dim, config.num_experts + config.domain_experts)


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
