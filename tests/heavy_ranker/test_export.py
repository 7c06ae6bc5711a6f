import numpy as np
import pytest
import torch

from contracts.bundle import open_bundle
from contracts.config import convert
from contracts.errors import ArtifactError, InputError, MismatchError
from contracts.probability import sigmoid
from engines.parity import FP32_GATE
from heavy_ranker.config import HeavyConfig
from heavy_ranker.data import read_impressions
from heavy_ranker.export import export_heavy
from heavy_ranker.serving import HeavyServing
from modeling.batches import gather


@pytest.fixture(scope="module")
def serving(bundle):
    return HeavyServing.load(bundle, threads=1)


@pytest.fixture(scope="module")
def impressions(run, log):
    return read_impressions(run.schema, log, run.path / "examples")


def rows_of(examples, pairs):
    """Encoded requests, ads, pairs and the request index of some pairs."""
    requests, request_index = np.unique(examples.request_row[pairs], return_inverse=True)
    ads = examples.ad.take(examples.ad_row[pairs])
    return examples.query.take(requests), ads, examples.pair.take(pairs), request_index


@pytest.mark.parametrize("pairs", [np.arange(1), np.arange(3), np.arange(40, 400)], ids=["one", "a request", "many"])
def test_graphs_equal_the_module_on_real_rows(serving, run, impressions, pairs):
    query, ads, pair, request_index = rows_of(impressions, pairs)
    logits = serving.score(serving.encode_request(query), ads, pair, request_index)
    batch = gather(impressions, pairs)
    with torch.no_grad():
        expected = torch.sigmoid(run.model(batch.sides(), batch.request_index, batch.ad_index)).numpy()
    assert logits.dtype == np.float32
    np.testing.assert_allclose(sigmoid(logits), expected, atol=FP32_GATE.tolerance)


def test_several_requests_in_one_call_equal_one_call_each(serving, impressions):
    query, ads, pair, request_index = rows_of(impressions, np.arange(60))
    together = serving.score(serving.encode_request(query), ads, pair, request_index)
    for request in range(len(query)):
        at = np.flatnonzero(request_index == request)
        state = serving.encode_request(query.take(np.array([request])))
        alone = serving.score(state, ads.take(at), pair.take(at), np.zeros(len(at), np.int64))
        np.testing.assert_allclose(together[at], alone, atol=1e-4)


def test_a_state_has_a_row_a_request(serving, impressions):
    query, *_ = rows_of(impressions, np.arange(60))
    assert len(serving.encode_request(query)) == len(query) == 20


def test_pair_features_are_wanted_exactly_where_the_schema_has_them(serving, impressions):
    query, ads, _, request_index = rows_of(impressions, np.arange(3))
    with pytest.raises(MismatchError, match="pair features: the schema has them"):
        serving.score(serving.encode_request(query), ads, None, request_index)


def test_a_bundle_opens_again_and_passes_its_own_check(bundle, run):
    opened = open_bundle(bundle.path, kind="heavy")
    assert opened.schema == run.schema
    assert opened.manifest.metrics == run.summary.metrics
    assert convert(opened.config, HeavyConfig, source="config.json") == run.config
    errors = HeavyServing.load(opened, threads=1).check_parity(opened.tensors("parity.safetensors"))
    assert errors["probabilities"] <= FP32_GATE.tolerance


def test_a_bundle_holds_what_serving_and_replay_need(bundle):
    files = {"request.onnx", "ads.onnx", "requests.jsonl", "profile.json", "config.json", "schema.yaml"}
    assert files <= bundle.manifest.files.keys()
    assert len(bundle.file("requests.jsonl").read_bytes().splitlines()) >= 20


def test_changed_weights_fail_the_check(bundle, serving):
    tensors = dict(bundle.tensors("parity.safetensors"))
    tensors["out.probabilities"] = tensors["out.probabilities"] + np.float32(1e-4)
    with pytest.raises(ArtifactError, match=r"output probabilities is .* from the trained module, allowed 1e-05"):
        serving.check_parity(tensors)


def test_an_existing_target_is_kept(bundle, run, log):
    before = bundle.manifest.version
    with pytest.raises(InputError, match="already holds a finished artifact"):
        export_heavy(run, log, bundle.path)
    assert open_bundle(bundle.path).manifest.version == before


def test_probabilities_are_stable_at_both_ends():
    logits = np.array([-1000.0, -1.0, 0.0, 1.0, 1000.0])
    expected = [0.0, 1 / (1 + np.e), 0.5, 1 / (1 + np.exp(-1.0)), 1.0]
    np.testing.assert_allclose(sigmoid(logits), expected)
