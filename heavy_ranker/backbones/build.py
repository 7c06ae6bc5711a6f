"""Builds the backbone that a configuration names."""

from collections.abc import Sequence

from contracts.errors import ConfigError
from heavy_ranker.backbones.hyformer import HyFormer, HyFormerLayer
from heavy_ranker.config import ModelConfig
from heavy_ranker.query_decoding import CrossDecoding
from heavy_ranker.query_generation import OneTokenQueries, QueryGeneration
from heavy_ranker.sequence import SwiGluEncoder
from heavy_ranker.token_mixer import TokenMixer


def build_backbone(config: ModelConfig, *, request_tokens: int, ad_tokens: int, sequences: Sequence[str]) -> HyFormer:
    """The backbone, weights drawn from torch's global generator.

    Args:
        config: Sizes.
        request_tokens: Tokens of the request.
        ad_tokens: Tokens of ad and pair together.
        sequences: Names of the behaviour sequences.

    Raises:
        ConfigError: What the configuration asks for does not fit these tokens and sequences.
    """
    return _hyformer(config, request_tokens, ad_tokens, sequences)


def _hyformer(config: ModelConfig, request_tokens: int, ad_tokens: int, sequences: Sequence[str]) -> HyFormer:
    num_tokens = _num_queries(config, sequences) + request_tokens + ad_tokens
    generation = _generation(config, request_tokens, ad_tokens, sequences)
    layers = [_hyformer_layer(config, num_tokens, sequences) for _ in range(config.num_layers)]
    return HyFormer(generation, layers, num_tokens, config.token_dim)


def _num_queries(config: ModelConfig, sequences: Sequence[str]) -> int:
    return config.queries_per_sequence * max(1, len(sequences))


def _generation(
    config: ModelConfig, request_tokens: int, ad_tokens: int, sequences: Sequence[str]
) -> QueryGeneration | OneTokenQueries:
    if config.query_source == "all_tokens":
        return QueryGeneration(
            num_queries=_num_queries(config, sequences),
            request_dim=(request_tokens + len(sequences)) * config.token_dim,
            ad_dim=ad_tokens * config.token_dim,
            hidden_dim=config.query_hidden_dim,
            token_dim=config.token_dim,
        )
    if not sequences:
        raise ConfigError("model.query_source: one_token reads a pooled sequence, got a schema without sequences")
    return OneTokenQueries(
        num_queries=_num_queries(config, sequences),
        num_sequences=len(sequences),
        ad_tokens=ad_tokens,
        hidden_dim=config.query_hidden_dim,
        token_dim=config.token_dim,
    )


def _hyformer_layer(config: ModelConfig, num_tokens: int, sequences: Sequence[str]) -> HyFormerLayer:
    return HyFormerLayer(
        encoders={name: SwiGluEncoder(config.token_dim, config.sequence_expansion) for name in sequences},
        decoders={name: CrossDecoding(config.token_dim, config.num_heads) for name in sequences},
        mixer=TokenMixer(num_tokens, config.token_dim, config.num_slices, config.mixer_expansion),
        queries_per_sequence=config.queries_per_sequence,
    )
