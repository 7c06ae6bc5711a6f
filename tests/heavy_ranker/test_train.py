import math
import shutil

import msgspec
import numpy as np
import pytest
import torch

from contracts.errors import ConfigError, InputError, MismatchError
from heavy_ranker.data import read_impressions
from heavy_ranker.evaluate import evaluate_run, predict, task_metrics
from heavy_ranker.loss import impression_loss
from heavy_ranker.run import build_model, load_run
from heavy_ranker.train import batch_loss, fit, train_heavy
from modeling.batches import gather
from modeling.split import split_by_time
from modeling.weights import model_weights


@pytest.fixture(scope="module")
def impressions(schema, log, run):
    return read_impressions(schema, log, run.path / "examples")


def test_training_learns_the_clicks(run):
    metrics = run.summary.metrics
    assert metrics["click"]["auc"] > 0.75
    assert metrics["click"]["normalised_entropy"] < 0.9
    assert 0.7 < metrics["click"]["calibration"] < 1.3


def test_summary_says_what_was_trained(run, schema, impressions):
    training, _ = split_by_time(impressions, 0.2)
    assert run.summary.impressions == len(training)
    assert run.summary.watermark == impressions.watermark.isoformat()
    assert run.summary.parameters["tables"] == 5 * 4 + 64 * 8 + 32 * 4 + 16 * 4
    assert len(run.summary.history) == 4


def test_a_loaded_run_predicts_what_the_trained_one_does(run, impressions):
    loaded = load_run(run.path)
    assert loaded.config == run.config
    np.testing.assert_array_equal(predict(loaded.model, impressions), predict(run.model, impressions))


def test_a_batch_equals_its_rows_one_by_one(run, impressions):
    together = predict(run.model, impressions, batch_size=64)[:20]
    alone = [run.model(*_model_inputs(gather(impressions, np.array([row])))) for row in range(20)]
    np.testing.assert_allclose(together, torch.cat(alone).detach().numpy(), atol=1e-5)


def test_the_loss_of_a_batch_is_the_impression_loss(run, impressions):
    batch = gather(impressions, np.arange(32))
    expected = impression_loss(run.model(*_model_inputs(batch)), batch.labels, batch.weight)
    torch.testing.assert_close(batch_loss(run.model)(batch), expected)


def test_the_same_seed_gives_the_same_weights(schema, log, config, run, tmp_path):
    shutil.copytree(run.path / "examples", tmp_path / "again" / "examples")
    again = train_heavy(schema, log, tmp_path / "again", config)
    weights = model_weights(run.model)
    assert all(torch.equal(weights[name], value) for name, value in model_weights(again.model).items())


def test_training_again_in_a_finished_run_changes_nothing(schema, log, config, run):
    again = train_heavy(schema, log, run.path, config)
    assert again.summary == run.summary


def test_without_validation_the_last_weights_are_kept(schema, log, config, tmp_path):
    one_epoch = msgspec.structs.replace(config.loop, epochs=1)
    trained = train_heavy(
        schema, log, tmp_path / "run", msgspec.structs.replace(config, loop=one_epoch, validation_share=0.0)
    )
    assert trained.summary.impressions == 1800
    assert trained.summary.metrics == {}


def test_a_run_of_another_configuration_is_refused(schema, log, config, run):
    with pytest.raises(InputError, match="holds a run of another schema or configuration"):
        train_heavy(schema, log, run.path, msgspec.structs.replace(config, seed=4))


def test_an_unfitted_schema_is_refused(schema, log, config, tmp_path):
    features = schema.features | {"price": msgspec.structs.replace(schema.features["price"], transform="standardize")}
    with pytest.raises(ConfigError, match="adsieve schema fit"):
        train_heavy(msgspec.structs.replace(schema, features=features), log, tmp_path, config)


def test_sizes_that_do_not_fit_are_refused_before_the_run_begins(schema, log, config, tmp_path):
    model = msgspec.structs.replace(config.model, num_slices=config.model.token_dim + 1)
    with pytest.raises(ConfigError, match="num_slices: must divide"):
        train_heavy(schema, log, tmp_path / "run", msgspec.structs.replace(config, model=model))
    assert not (tmp_path / "run").exists()


def test_an_unfinished_run_is_refused(run, tmp_path):
    shutil.copy(run.path / "config.json", tmp_path / "config.json")
    with pytest.raises(InputError, match="no finished run here"):
        load_run(tmp_path)


def test_weights_of_another_size_are_refused(run, schema, config, tmp_path):
    target = tmp_path / "run"
    shutil.copytree(run.path, target)
    model = msgspec.structs.replace(run.config.model, expert_dim=16)
    (target / "config.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(run.config, model=model)))
    with pytest.raises(MismatchError, match=r"is of another model, these tensors differ: ranker\.extraction"):
        load_run(target)


def test_equal_seeds_build_equal_models(schema, config):
    first, second = (model_weights(build_model(schema, config)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_further_epoch_begins_with_fresh_tables(schema, config, impressions, tmp_path):
    """With rates of zero nothing else moves, so the tables are exactly the second epoch's draw."""
    two_epochs = msgspec.structs.replace(config.loop, epochs=2, learning_rate=0.0)
    still = msgspec.structs.replace(config, loop=two_epochs, table_learning_rate=0.0, fresh_tables=True)
    model, expected = build_model(schema, still), build_model(schema, still)
    fit(model, impressions, None, still, tmp_path)
    expected.tables.reinitialise(expected.tables.stack.tables, seed=still.seed + 1)
    weights = model_weights(expected)
    assert all(torch.equal(weights[name], value) for name, value in model_weights(model).items())


def test_evaluation_reports_all_and_each_scenario_beside_the_truth(run, log, impressions):
    result = evaluate_run(run, log)
    assert result["rows"] == len(impressions)
    assert set(result["slices"]) == {"all", "standard", "shopping"}
    everything = result["slices"]["all"]
    expected = task_metrics(
        run.schema.tasks, predict(run.model, impressions), np.asarray(impressions.labels), np.ones(len(impressions))
    )
    assert everything["model"] == expected
    for task in run.schema.tasks:
        assert everything["truth"][task]["log_loss"] < everything["model"][task]["log_loss"] * 1.05
        assert everything["truth"][task]["calibration"] == pytest.approx(1.0, abs=0.15)
        rows = [result["slices"][name]["model"][task]["rows"] for name in ("standard", "shopping")]
        assert sum(rows) == everything["model"][task]["rows"]


def test_metrics_of_a_task_without_labels_are_undefined():
    found = task_metrics(["click"], np.zeros((3, 1)), np.full((3, 1), np.nan), np.ones(3))["click"]
    assert found["rows"] == 0
    assert math.isnan(found["auc"])


def _model_inputs(batch):
    return batch.sides(), batch.request_index, batch.ad_index
