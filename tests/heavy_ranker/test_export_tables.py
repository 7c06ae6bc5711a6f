import numpy as np
import pytest

from contracts.bundle import open_bundle
from contracts.errors import ArtifactError
from engines.int8_tables import SCALE_SUFFIX
from heavy_ranker.data import read_impressions
from heavy_ranker.export import export_heavy
from heavy_ranker.export_tables import quantise_tables, use_int8_tables
from heavy_ranker.run import load_run
from heavy_ranker.serving import HeavyServing
from modeling.batches import gather
from modeling.weights import model_weights


@pytest.fixture
def own_run(run):
    """A run whose model may be changed."""
    own = load_run(run.path)
    assert own.model is not run.model
    return own


@pytest.fixture(scope="module")
def batch(run, log):
    return gather(read_impressions(run.schema, log, run.path / "examples"), np.arange(400))


def test_int8_tables_are_served_from_a_quarter_of_the_memory(own_run, log, tmp_path):
    bundle = export_heavy(own_run, log, tmp_path / "int8", tables="int8")
    report = open_bundle(bundle.path).manifest.metrics["tables_int8"]
    assert 0 < report["error"] <= 6e-3
    assert report["rank_correlation"] >= 0.999
    assert report["bytes"] < report["bytes_fp32"] / 2
    assert report["auc"].keys() == set(own_run.schema.tasks)
    weights = bundle.tensors()
    assert weights["tables.ad"].dtype == np.int8
    assert weights[f"tables.ad{SCALE_SUFFIX}"].shape == (64,)
    HeavyServing.load(bundle, threads=1).check_parity(bundle.tensors("parity.safetensors"))


def test_rounding_that_changes_probabilities_is_refused_and_undone(own_run, batch):
    model, before = own_run.model, own_run.model.tables.export_tables()
    weights = quantise_tables(model_weights(model))
    for name in [name for name in weights if name.endswith(SCALE_SUFFIX)]:
        weights[name] = weights[name] * 2
    with pytest.raises(ArtifactError, match=r"int8 tables: .*; export with tables in fp32"):
        use_int8_tables(model, weights, batch, own_run.schema.tasks)
    for name, values in model.tables.export_tables().items():
        np.testing.assert_array_equal(values, before[name])
