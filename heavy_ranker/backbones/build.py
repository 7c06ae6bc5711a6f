"""Builds the backbone that a configuration names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from contracts.errors import ConfigError
from heavy_ranker.backbones.din_dcn import DinDcn
from heavy_ranker.backbones.ensemble import Ensemble
from heavy_ranker.backbones.hyformer import HyFormer, HyFormerLayer
from heavy_ranker.backbones.masknet import MaskBlock, MaskNet
from heavy_ranker.backbones.protocol import Backbone
from heavy_ranker.backbones.rankmixer import RankMixer, RankMixerBlock
from heavy_ranker.backbones.request_only import RequestOnlyHyFormer
from heavy_ranker.backbones.target_attention import AttendedSequences
from heavy_ranker.config import BackboneName, ModelConfig, SequenceEncoderName
from heavy_ranker.event_attention import LongerEncoder, TransformerEncoder
from heavy_ranker.query_decoding import CrossDecoding
from heavy_ranker.query_generation import OneTokenQueries, QueryGeneration
from heavy_ranker.sequence import SwiGluEncoder
from heavy_ranker.split_mixer import SplitMixer
from heavy_ranker.token_mixer import TokenMixer
from modeling.cross import LowRankCrossLayer
from modeling.mlp import mlp

BLOCKS_PER_LAYER = 2
"""Cross layers, mask blocks or mixer blocks for each layer asked for: a HyFormer layer, too, mixes tokens twice."""


@dataclass(frozen=True)
class Inputs:
    """What a backbone will read.

    Args:
        request_tokens: Tokens of the request.
        ad_tokens: Tokens of ad and pair together.
        sequences: Names of the behaviour sequences.
    """

    request_tokens: int
    ad_tokens: int
    sequences: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of request, ad and pair, and one for each sequence."""
        return self.request_tokens + self.ad_tokens + len(self.sequences)


def build_backbone(config: ModelConfig, *, request_tokens: int, ad_tokens: int, sequences: Sequence[str]) -> Backbone:
    """The backbone, or the ensemble of several, weights drawn from torch's global generator.

    Args:
        config: Sizes.
        request_tokens: Tokens of the request.
        ad_tokens: Tokens of ad and pair together.
        sequences: Names of the behaviour sequences.

    Raises:
        ConfigError: What the configuration asks for does not fit these tokens and sequences.
    """
    if not config.backbones or len(set(config.backbones)) < len(config.backbones):
        raise ConfigError(f"model.backbones: expected one or more, each once, got {list(config.backbones)}")
    if config.request_only and "hyformer" not in config.backbones:
        raise ConfigError(f"model.request_only: separates hyformer's tokens, got {list(config.backbones)}")
    unknown = sorted(config.sequence_encoders.keys() - set(sequences))
    if unknown:
        raise ConfigError(f"model.sequence_encoders.{unknown[0]}: expected a sequence of {list(sequences)}")
    inputs = Inputs(request_tokens, ad_tokens, tuple(sequences))
    members: dict[str, Backbone] = {name: _BUILDERS[name](config, inputs) for name in config.backbones}
    return Ensemble(members) if len(members) > 1 else members[config.backbones[0]]


def _hyformer(config: ModelConfig, inputs: Inputs) -> HyFormer | RequestOnlyHyFormer:
    num_tokens = _num_queries(config, inputs) + inputs.request_tokens + inputs.ad_tokens
    generation = _generation(config, inputs)
    layers = [_hyformer_layer(config, inputs, num_tokens) for _ in range(config.num_layers)]
    if config.request_only:
        return RequestOnlyHyFormer(generation, layers, num_tokens, config.token_dim)
    return HyFormer(generation, layers, num_tokens, config.token_dim)


def _num_queries(config: ModelConfig, inputs: Inputs) -> int:
    return config.queries_per_sequence * max(1, len(inputs.sequences))


def _generation(config: ModelConfig, inputs: Inputs) -> QueryGeneration | OneTokenQueries:
    if config.query_source == "all_tokens":
        return QueryGeneration(
            num_queries=_num_queries(config, inputs),
            request_dim=(inputs.request_tokens + len(inputs.sequences)) * config.token_dim,
            ad_dim=inputs.ad_tokens * config.token_dim,
            hidden_dim=config.query_hidden_dim,
            token_dim=config.token_dim,
        )
    if not inputs.sequences:
        raise ConfigError("model.query_source: one_token reads a pooled sequence, got a schema without sequences")
    return OneTokenQueries(
        num_queries=_num_queries(config, inputs),
        num_sequences=len(inputs.sequences),
        ad_tokens=inputs.ad_tokens,
        hidden_dim=config.query_hidden_dim,
        token_dim=config.token_dim,
    )


def _hyformer_layer(config: ModelConfig, inputs: Inputs, num_tokens: int) -> HyFormerLayer:
    return HyFormerLayer(
        encoders=_encoders(config, inputs),
        decoders={name: CrossDecoding(config.token_dim, config.num_heads) for name in inputs.sequences},
        mixer=_mixer(config, inputs, num_tokens),
        queries_per_sequence=config.queries_per_sequence,
    )


def _mixer(config: ModelConfig, inputs: Inputs, num_tokens: int) -> TokenMixer | SplitMixer:
    sizes = config.token_dim, config.num_slices, config.mixer_expansion
    if config.request_only:
        return SplitMixer(inputs.request_tokens, num_tokens - inputs.request_tokens, *sizes)
    return TokenMixer(num_tokens, *sizes)


def _din_dcn(config: ModelConfig, inputs: Inputs) -> DinDcn:
    dim, wide = inputs.num_tokens * config.token_dim, _wide(config)
    crosses = [LowRankCrossLayer(dim, config.token_dim) for _ in range(BLOCKS_PER_LAYER * config.num_layers)]
    return DinDcn(_behaviour(config, inputs), crosses, mlp(dim, (wide, wide)), wide)


def _masknet(config: ModelConfig, inputs: Inputs) -> MaskNet:
    wide, request_dim = _wide(config), inputs.request_tokens * config.token_dim
    dim = inputs.num_tokens * config.token_dim
    blocks = [
        MaskBlock(request_dim, dim - request_dim, 2 * config.token_dim, wide if at else dim, wide)
        for at in range(BLOCKS_PER_LAYER * config.num_layers)
    ]
    return MaskNet(_behaviour(config, inputs), blocks, config.token_dim, wide)


def _rankmixer(config: ModelConfig, inputs: Inputs) -> RankMixer:
    possible = [n for n in range(inputs.num_tokens, config.token_dim + 1) if config.token_dim % n == 0]
    if not possible:
        raise ConfigError(
            f"model.token_dim: rankmixer cuts a token into as many pieces as there are tokens, expected at least "
            f"{inputs.num_tokens}, got {config.token_dim}"
        )
    blocks = [
        RankMixerBlock(possible[0], config.token_dim, config.mixer_expansion)
        for _ in range(BLOCKS_PER_LAYER * config.num_layers)
    ]
    return RankMixer(_behaviour(config, inputs), blocks, possible[0] - inputs.num_tokens, config.token_dim)


_BUILDERS: dict[BackboneName, Callable[[ModelConfig, Inputs], Backbone]] = {
    "hyformer": _hyformer,
    "din_dcn": _din_dcn,
    "masknet": _masknet,
    "rankmixer": _rankmixer,
}


def _behaviour(config: ModelConfig, inputs: Inputs) -> AttendedSequences:
    ad_dim, half = inputs.ad_tokens * config.token_dim, (config.token_dim + 1) // 2
    return AttendedSequences(_encoders(config, inputs), ad_dim, config.token_dim, half)


def _encoders(config: ModelConfig, inputs: Inputs) -> dict[str, nn.Module]:
    chosen = {name: config.sequence_encoders.get(name, config.sequence_encoder) for name in inputs.sequences}
    return {name: _ENCODERS[encoder](config) for name, encoder in chosen.items()}


_ENCODERS: dict[SequenceEncoderName, Callable[[ModelConfig], nn.Module]] = {
    "swiglu": lambda config: SwiGluEncoder(config.token_dim, config.sequence_expansion),
    "transformer": lambda config: TransformerEncoder(config.token_dim, config.num_heads, config.sequence_expansion),
    "longer": lambda config: LongerEncoder(
        config.token_dim, config.num_heads, config.sequence_expansion, config.longer_length
    ),
}


def _wide(config: ModelConfig) -> int:
    """Width of layers that read all tokens at once."""
    return 2 * config.mixer_expansion * config.token_dim
