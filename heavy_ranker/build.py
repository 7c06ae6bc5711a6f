"""Builds a heavy ranker from a schema and sizes."""

from contracts.errors import ConfigError
from contracts.layout import FlatSlice, side_layout
from contracts.schema import FeatureSchema, Side
from heavy_ranker.backbones.build import build_backbone
from heavy_ranker.config import ModelConfig, SideGroups
from heavy_ranker.numeric import PiecewiseLinear, dense_columns
from heavy_ranker.ple import ProgressiveExtraction, TaskHeads
from heavy_ranker.ranker import HeavyRanker
from heavy_ranker.sequence import EventProjection
from heavy_ranker.token_products import TokenProducts
from heavy_ranker.tokens import GroupTokens, configured_groups, equal_columns, group_columns, semantic_groups


def model_sides(schema: FeatureSchema) -> tuple[Side, ...]:
    """The sides that the ranker reads: the pair only where the schema has such features."""
    return ("query", "ad", "pair") if schema.side_features("pair") else ("query", "ad")


def resolve_groups(schema: FeatureSchema, config: ModelConfig) -> SideGroups:
    """Which features form which token, for every side of the model.

    A run keeps the result in its configuration: labels and equal widths are no longer asked after that. Where tokens
    are equal pieces of all features, there are no groups.

    Raises:
        ConfigError: A side has no feature beside sequences, or a configured group does not fit the schema.
    """
    if config.token_split == "equal":
        if config.groups:
            raise ConfigError("model.groups: expected none with token_split equal, which cuts through all features")
        return {}
    return {side: _side_groups(schema, config, side) for side in model_sides(schema)}


def _side_groups(schema: FeatureSchema, config: ModelConfig, side: Side) -> dict[str, tuple[str, ...]]:
    slices = _slices(schema, side)
    if side in config.groups:
        return configured_groups(slices, config.groups[side], side=side)
    labels = {name: feature.label for name, feature in schema.side_features(side).items()}
    return semantic_groups(slices, labels, _wanted_tokens(config, side))


def _slices(schema: FeatureSchema, side: Side) -> tuple[FlatSlice, ...]:
    slices = side_layout(schema, side).flat(pool_sequences=False)
    if not slices:
        raise ConfigError(f"features: expected at least one {side} feature that is no sequence, got none")
    return slices


def _wanted_tokens(config: ModelConfig, side: Side) -> int:
    return {"query": config.query_tokens, "ad": config.ad_tokens, "pair": 1}[side]


def build_ranker(schema: FeatureSchema, config: ModelConfig) -> HeavyRanker:
    """The ranker without its tables, weights drawn from torch's global generator.

    Raises:
        ConfigError: See :func:`resolve_groups`; or sizes that do not divide each other.
    """
    _check_divides(config)
    tokens = _tokens(schema, config)
    sequences = side_layout(schema, "query").sequences
    ad_tokens = sum(side.num_tokens for name, side in tokens.items() if name != "query")
    backbone = build_backbone(
        config,
        request_tokens=tokens["query"].num_tokens,
        ad_tokens=ad_tokens,
        sequences=[sequence.name for sequence in sequences],
    )
    products = None
    if config.product_heads:
        products = TokenProducts(
            tokens["query"].num_tokens, ad_tokens, config.token_dim, config.product_heads, normed=config.product_norm
        )
    return HeavyRanker(
        request_tokens=tokens["query"],
        ad_tokens=tokens["ad"],
        pair_tokens=tokens.get("pair"),
        events={sequence.name: EventProjection(sequence.dim, config.token_dim) for sequence in sequences},
        backbone=backbone,
        extraction=ProgressiveExtraction(
            in_dim=backbone.out_dim + (products.out_dim if products else 0),
            num_tasks=len(schema.tasks) * config.members,
            shared_experts=config.shared_experts,
            task_experts=config.task_experts,
            expert_dim=config.expert_dim,
        ),
        heads=TaskHeads(len(schema.tasks) * config.members, config.expert_dim, config.head_dims),
        num_members=config.members,
        products=products,
    )


def _tokens(schema: FeatureSchema, config: ModelConfig) -> dict[Side, GroupTokens]:
    groups = resolve_groups(schema, config)
    return {side: _side_tokens(schema, config, side, groups.get(side, {})) for side in model_sides(schema)}


def _side_tokens(
    schema: FeatureSchema, config: ModelConfig, side: Side, groups: dict[str, tuple[str, ...]]
) -> GroupTokens:
    slices = _slices(schema, side)
    in_dim = sum(piece.width for piece in slices)
    if config.token_split == "equal":
        columns = equal_columns(in_dim, max(1, _wanted_tokens(config, side)))
    else:
        columns = group_columns(slices, groups)
    dense = dense_columns(side_layout(schema, side))
    if not config.numeric_bins or not dense:
        return GroupTokens(columns, in_dim, config.token_dim)
    numeric = PiecewiseLinear(dense, in_dim, config.numeric_bins)
    return GroupTokens([numeric.with_bins(group) for group in columns], numeric.out_dim, config.token_dim, numeric)


def _check_divides(config: ModelConfig) -> None:
    for name in ("num_heads", "num_slices", "product_heads"):
        value = getattr(config, name)
        if value and config.token_dim % value:
            raise ConfigError(f"model.{name}: must divide token_dim={config.token_dim}, got {value}")
