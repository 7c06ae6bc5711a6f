"""Configuration of a heavy ranker: its sizes, and how it is trained. Frozen, keyword-only, unknown keys refused."""

from typing import Literal

import msgspec

from contracts.ranges import BatchSize, Events, Few, FewOrNone, Rate, Seed, ShareBelowOne, Width
from contracts.schema import Side
from modeling.compile import Compile
from modeling.loop_config import LoopConfig

SideGroups = dict[Side, dict[str, tuple[str, ...]]]
"""``{side: {group: (feature, ...)}}``: one token a group."""


BackboneName = Literal["hyformer", "din_dcn", "masknet", "rankmixer"]
SequenceEncoderName = Literal["swiglu", "transformer", "longer"]


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the model.

    Args:
        backbones: What tokens interact in; several form an ensemble in front of the same experts and heads.
        token_dim: Width of a token, T.
        token_split: How a side's features form tokens: by meaning (labels, groups, then near equal widths), or
            ``equal``, all features side by side and cut into pieces of one width.
        query_tokens: Tokens of the query side, for features that no label and no group claims.
        ad_tokens: The same of the ad side.
        groups: Which features form which token, for the sides named; other sides use labels and equal widths.
        numeric_bins: Bins in which tokens also get each dense value, piecewise linear; 0 for the value alone.
        queries_per_sequence: Query tokens that each behaviour sequence gets.
        query_source: What generates a query token: all tokens and the pooled sequences, as in HyFormer, or one token
            and the pooled sequence that it will read.
        query_hidden_dim: Hidden width of the network that generates one query token.
        request_only: The request's tokens never read the ad's, so that they are computed once for a request however
            many layers there are.
        num_layers: HyFormer layers.
        num_heads: Heads of the decoding attention; divides ``token_dim``.
        sequence_encoder: Of each behaviour sequence: ``swiglu`` refines each event alone, in a ``transformer`` events
            read one another, and of ``longer`` the latest ones read all and remain.
        sequence_encoders: Of single sequences, instead.
        longer_length: Events that ``longer`` keeps.
        sequence_expansion: Hidden width of a sequence encoder, in token widths.
        num_slices: Slices of the token mixer; divides ``token_dim``.
        mixer_expansion: Hidden width of the mixer's layers, in their input widths.
        product_heads: Slices in which experts also get the dot product of every request token with every ad token;
            divides ``token_dim``, 0 for none.
        product_norm: Scale tokens to unit root mean square before these products.
        shared_experts: Experts that all tasks read.
        task_experts: Experts of each task.
        expert_dim: Width of an expert.
        head_dims: Hidden widths of each task's MLP.
        members: Copies of the tasks' own experts, gates and heads, each trained alone on the shared rest; what is
            predicted is the mean of their probabilities.
    """

    backbones: tuple[BackboneName, ...] = ("hyformer",)
    token_dim: Width
    token_split: Literal["semantic", "equal"] = "semantic"
    query_tokens: FewOrNone
    ad_tokens: FewOrNone
    groups: SideGroups = {}
    numeric_bins: FewOrNone = 0
    queries_per_sequence: Few
    query_source: Literal["all_tokens", "one_token"] = "all_tokens"
    query_hidden_dim: Width
    request_only: bool = False
    num_layers: Few
    num_heads: Few
    sequence_encoder: SequenceEncoderName = "swiglu"
    sequence_encoders: dict[str, SequenceEncoderName] = {}
    longer_length: Events = 16
    sequence_expansion: Few
    num_slices: Few
    mixer_expansion: Few
    product_heads: FewOrNone = 0
    product_norm: bool = False
    shared_experts: Few
    task_experts: FewOrNone
    expert_dim: Width
    head_dims: tuple[Width, ...]
    members: Few = 1


class HeavyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A heavy ranker and its training; a run and a bundle keep it as ``config.json``.

    Args:
        model: Sizes.
        loop: Length, rates and rhythm of training.
        table_learning_rate: Peak rate of the tables' row-wise Adagrad.
        table_init: The tables' first weights are uniform within one over the root of this.
        loss_reduction: Of a task's loss over the impressions of a batch.
        fresh_tables: Draw all tables anew as each further epoch begins, so that dense layers learn from another pass
            but no id is learned by heart.
        batch_size: Impressions a batch; whole requests make it vary by those of one request.
        validation_share: Share of the impressions, the last by time, that is not trained on but validated on.
        calibrate: After training, move each task's last bias so that predictions of the newest rows add up to labels.
        seed: Of initial weights and order.
        compile: Compile the dense layers before training: ``auto`` where the run is long enough to earn it back.
    """

    model: ModelConfig
    loop: LoopConfig
    table_learning_rate: Rate
    table_init: Literal["dim", "rows"] = "dim"
    loss_reduction: Literal["mean", "sum"] = "mean"
    fresh_tables: bool
    batch_size: BatchSize
    validation_share: ShareBelowOne
    calibrate: bool = False
    seed: Seed
    compile: Compile = "auto"
