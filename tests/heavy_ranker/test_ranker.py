import msgspec
import numpy as np
import pytest
import torch

from heavy_ranker.build import build_ranker
from heavy_ranker.rows import EvenRows, IndexedRows

LENGTHS = {"clicks": (5, 2, 0), "views": (0, 3, 1)}
REQUEST_INDEX = torch.tensor([2, 0, 0, 1, 2, 2, 1])
ROWS = IndexedRows(REQUEST_INDEX, num_requests=3)
ONE_EACH = EvenRows(num_requests=len(REQUEST_INDEX), width=1)


VARIANTS = {
    "hyformer": {},
    "hyformer, two layers": {"num_layers": 2},
    "hyformer, one token": {"query_source": "one_token", "num_layers": 2},
    "din_dcn": {"backbones": ("din_dcn",)},
    "masknet": {"backbones": ("masknet",)},
    "rankmixer": {"backbones": ("rankmixer",)},
    "rankmixer, two layers": {"backbones": ("rankmixer",), "num_layers": 2},
    "equal pieces": {"token_split": "equal"},
    "request only": {"request_only": True, "num_layers": 2},
    "transformer": {"sequence_encoder": "transformer", "num_layers": 2},
    "longer": {"sequence_encoder": "longer", "longer_length": 2, "num_layers": 2},
    "an encoder each": {"sequence_encoders": {"views": "longer", "clicks": "transformer"}, "longer_length": 2},
    "din_dcn over longer": {"backbones": ("din_dcn",), "sequence_encoder": "longer", "longer_length": 2},
    "ensemble": {"backbones": ("hyformer", "din_dcn", "rankmixer")},
    "products": {"product_heads": 2},
    "products of scaled tokens": {"product_heads": 2, "product_norm": True},
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def ranker(request, schema, sizes, randomised):
    return randomised(build_ranker(schema, msgspec.structs.replace(sizes, **request.param)))


@pytest.fixture
def request_inputs(ranker):
    """Three requests; what stands at padding is noise, and must not matter."""
    sequences = {}
    for name, length in (("clicks", 5), ("views", 3)):
        mask = (torch.arange(length) < torch.tensor(LENGTHS[name]).unsqueeze(1)).float()
        event_dim = ranker.events[ranker.sequence_names.index(name)].project.in_features
        sequences[name] = (torch.randn(3, length, event_dim), mask)
    return torch.randn(3, ranker.request_tokens.in_dim), sequences


@pytest.fixture
def ads(ranker):
    """Flat features of seven ads and of their pairs with a request."""
    return tuple(torch.randn(len(REQUEST_INDEX), tokens.in_dim) for tokens in (ranker.ad_tokens, ranker.pair_tokens))


def test_scores_equal_the_plain_formula_row_by_row(reference, ranker, request_inputs, ads):
    flat, sequences = request_inputs
    logits = ranker.score_ads(ranker.encode_request(flat, sequences), ROWS, *ads)
    probabilities = reference.sigmoid(reference.array(logits))
    for row, request in enumerate(REQUEST_INDEX.tolist()):
        events = {
            name: reference.array(embeddings[request, : LENGTHS[name][request]])
            for name, (embeddings, _) in sequences.items()
        }
        ad_flat, pair_flat = (reference.array(side[row]) for side in ads)
        expected = reference.score_row(ranker, reference.array(flat[request]), events, ad_flat, pair_flat)
        np.testing.assert_allclose(probabilities[row], expected, atol=1e-5)


def test_two_stages_equal_the_naive_expanded_batch(ranker, request_inputs, ads):
    flat, sequences = request_inputs
    shared = ranker.score_ads(ranker.encode_request(flat, sequences), ROWS, *ads)
    expanded = {name: (events[REQUEST_INDEX], mask[REQUEST_INDEX]) for name, (events, mask) in sequences.items()}
    state = ranker.encode_request(flat[REQUEST_INDEX], expanded)
    torch.testing.assert_close(ranker.score_ads(state, ONE_EACH, *ads), shared)


def test_two_stages_give_the_gradients_of_the_expanded_batch(ranker, request_inputs, ads):
    flat, sequences = request_inputs
    expanded = {name: (events[REQUEST_INDEX], mask[REQUEST_INDEX]) for name, (events, mask) in sequences.items()}
    gradients = []
    for features, inputs, rows in ((flat, sequences, ROWS), (flat[REQUEST_INDEX], expanded, ONE_EACH)):
        loss = ranker.score_ads(ranker.encode_request(features, inputs), rows, *ads).square().sum()
        gradients.append(torch.autograd.grad(loss, list(ranker.parameters()), allow_unused=True))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_every_tensor_of_the_state_has_a_row_a_request(ranker, request_inputs):
    state = ranker.encode_request(*request_inputs)
    assert {tensor.shape[0] for tensor in state.values()} == {3}


def test_even_rows_equal_indexed_rows(ranker, request_inputs, ads):
    state, ads = ranker.encode_request(*request_inputs), tuple(side[:6] for side in ads)
    indexed = IndexedRows(torch.tensor([0, 0, 1, 1, 2, 2]), num_requests=3)
    torch.testing.assert_close(ranker.score_ads(state, EvenRows(3, 2), *ads), ranker.score_ads(state, indexed, *ads))


def test_every_parameter_learns(ranker, request_inputs, ads):
    for name, parameter in ranker.named_parameters():
        if name.endswith("temperature"):
            torch.nn.init.ones_(parameter)  # outside its bounds it rightly stands still
    ranker.score_ads(ranker.encode_request(*request_inputs), ROWS, *ads).square().sum().backward()
    still = [name for name, parameter in ranker.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert still == []


def test_later_tasks_are_never_more_probable(ranker, request_inputs, ads):
    logits = ranker.score_ads(ranker.encode_request(*request_inputs), ROWS, *ads)
    assert logits.shape == (7, 3)
    assert (logits.diff(dim=1) <= 0).all()


@pytest.mark.parametrize("backbone", ["hyformer", "din_dcn", "masknet", "rankmixer"])
def test_a_schema_without_sequences_or_pairs_works(schema, sizes, backbone):
    names = ("country", "user_ctr", "ad_id", "price")
    plain = msgspec.structs.replace(schema, features={name: schema.features[name] for name in names})
    ranker = build_ranker(plain, msgspec.structs.replace(sizes, backbones=(backbone,)))
    state = ranker.encode_request(torch.randn(2, 5), {})
    assert ranker.pair_tokens is None
    assert ranker.score_ads(state, IndexedRows(torch.tensor([0, 1, 1]), 2), torch.randn(3, 9)).shape == (3, 3)
