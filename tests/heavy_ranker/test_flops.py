import pytest
from torch import nn

from benchmarks.iqiyi_schema import iqiyi_schema
from contracts.layout import side_layout
from heavy_ranker.build import build_ranker
from heavy_ranker.flops import count_flops
from heavy_ranker.presets import iqiyi, small


@pytest.fixture(scope="module")
def big():
    return iqiyi_schema()


def test_the_benchmark_schema_has_forty_features_and_three_sequences(big):
    kinds = [feature.kind for feature in big.features.values()]
    assert len(kinds) - kinds.count("sequence") == 40
    assert [sequence.max_length for sequence in side_layout(big, "query").sequences] == [50, 50, 50]
    assert big.is_fitted


def test_the_iqiyi_preset_costs_what_is_published(big):
    config = iqiyi().model
    ranker = build_ranker(big, config)
    flops = count_flops(ranker, big)
    tokens = [part.num_tokens for part in (ranker.request_tokens, ranker.ad_tokens, ranker.pair_tokens)]
    assert sum(tokens) == 13
    assert config.queries_per_sequence * len(ranker.sequence_names) == 3
    assert 60e6 <= flops.alone <= 70e6
    assert flops.alone == flops.request + flops.ad


def test_counted_products_equal_the_sum_over_matrices(schema, sizes):
    """Each matrix costs two operations a weight for each position it meets; the decoding's two products come on top."""
    ranker = build_ranker(schema, sizes)
    flops = count_flops(ranker, schema)
    layer, (events, width) = ranker.backbone.layers[0], ((5, 3), sizes.token_dim)
    request = 0
    for length, project, encoder in zip(events, ranker.events, layer.encoders, strict=True):
        request += 2 * length * (_weights(project) + _weights(encoder) + 2 * width * width)
    request += 2 * (ranker.request_tokens.weight.numel() + ranker.backbone.generation.request_in.weight.numel())
    ad = _weights(ranker.ad_tokens) + _weights(ranker.pair_tokens) + ranker.backbone.generation.ad_in.weight.numel()
    ad += ranker.backbone.generation.out.numel() + _weights(layer.mixer)
    queries = sizes.queries_per_sequence
    ad += sum(queries * (2 * width * width + 2 * length * width) for length in events)
    ad += _weights(ranker.extraction) + _weights(ranker.heads)
    assert flops.request == request
    assert flops.ad == 2 * ad


def _weights(module: nn.Module) -> int:
    """Weights of matrices, biases and gains left out."""
    return sum(
        w.numel() for name, w in module.named_parameters() if w.dim() > 1 and "bias" not in name and "gain" not in name
    )


def test_the_printed_line_names_all_three(schema):
    flops = count_flops(build_ranker(schema, small().model), schema)
    parts = (f"{value / 1e6:.1f}" for value in (flops.alone, flops.request, flops.ad))
    line = "{} MFLOPs an ad when nothing is shared; {} a request and {} each of its ads"
    assert str(flops) == line.format(*parts)
