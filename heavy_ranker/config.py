"""Configuration of a heavy ranker: its sizes, and how it is trained. Frozen, keyword-only, unknown keys refused."""

import msgspec

from contracts.ranges import Count, CountOrZero, Rate, Seed, ShareBelowOne
from contracts.schema import Side
from modeling.loop_config import LoopConfig

SideGroups = dict[Side, dict[str, tuple[str, ...]]]
"""``{side: {group: (feature, ...)}}``: one token a group."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the model.

    Args:
        token_dim: Width of a token, T.
        query_tokens: Tokens of the query side, for features that no label and no group claims.
        ad_tokens: The same of the ad side.
        groups: Which features form which token, for the sides named; other sides use labels and equal widths.
        queries_per_sequence: Query tokens that each behaviour sequence gets.
        query_hidden_dim: Hidden width of the network that generates one query token.
        num_layers: HyFormer layers.
        num_heads: Heads of the decoding attention; divides ``token_dim``.
        sequence_expansion: Hidden width of a sequence encoder, in token widths.
        num_slices: Slices of the token mixer; divides ``token_dim``.
        mixer_expansion: Hidden width of the mixer's layers, in their input widths.
        shared_experts: Experts that all tasks read.
        task_experts: Experts of each task.
        expert_dim: Width of an expert.
        head_dims: Hidden widths of each task's MLP.
    """

    token_dim: Count
    query_tokens: CountOrZero
    ad_tokens: CountOrZero
    groups: SideGroups = {}
    queries_per_sequence: Count
    query_hidden_dim: Count
    num_layers: Count
    num_heads: Count
    sequence_expansion: Count
    num_slices: Count
    mixer_expansion: Count
    shared_experts: Count
    task_experts: CountOrZero
    expert_dim: Count
    head_dims: tuple[Count, ...]


class HeavyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A heavy ranker and its training; a run and a bundle keep it as ``config.json``.

    Args:
        model: Sizes.
        loop: Length, rates and rhythm of training.
        table_learning_rate: Peak rate of the tables' row-wise Adagrad.
        fresh_tables: Draw all tables anew as each further epoch begins, so that dense layers learn from another pass
            but no id is learned by heart.
        batch_size: Impressions a batch; whole requests make it vary by those of one request.
        validation_share: Share of the impressions, the last by time, that is not trained on but validated on.
        seed: Of initial weights and order.
    """

    model: ModelConfig
    loop: LoopConfig
    table_learning_rate: Rate
    fresh_tables: bool
    batch_size: Count
    validation_share: ShareBelowOne
    seed: Seed
