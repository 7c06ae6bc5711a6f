import msgspec
import numpy as np
import pytest

from contracts.probability import sigmoid
from heavy_ranker import calibration
from heavy_ranker.calibration import calibrate, chain_shifts
from heavy_ranker.data import read_impressions
from heavy_ranker.evaluate import predict
from heavy_ranker.run import build_model, load_run
from heavy_ranker.train import train_heavy


@pytest.fixture(scope="module")
def impressions(schema, log, run):
    return read_impressions(schema, log, run.path / "examples")


def sums(probabilities, labels, weight):
    """Weighted sums of predictions and of labels over the known labels of each task."""
    known = ~np.isnan(labels)
    return [(weight[:, None] * np.where(known, values, 0.0)).sum(0) for values in (probabilities, labels)]


def test_shifts_make_every_task_of_the_chain_add_up():
    random = np.random.default_rng(0)
    conditional, weight = random.normal(size=(400, 3)), random.uniform(0.5, 2.0, size=400)
    labels = np.cumprod(random.random((400, 3)) < [0.5, 0.6, 0.6], axis=1).astype(float)
    labels[random.random((400, 3)) < 0.1] = np.nan
    probabilities = np.cumprod(sigmoid(conditional + chain_shifts(conditional, labels, weight)), axis=1)
    given, wanted = sums(probabilities, labels, weight)
    np.testing.assert_allclose(given, wanted, rtol=1e-9)


def test_a_task_without_a_known_positive_is_left_alone():
    labels = np.array([[1.0, np.nan], [0.0, 0.0], [0.0, np.nan]])
    shifts = chain_shifts(np.zeros((3, 2)), labels, np.ones(3))
    assert shifts[0] != 0.0
    assert shifts[1] == 0.0


@pytest.mark.parametrize("members", [1, 2])
def test_a_calibrated_model_predicts_as_many_positives_as_there_were(schema, config, impressions, members):
    model = build_model(
        schema, msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, members=members))
    )
    labels, weight = np.asarray(impressions.labels), np.asarray(impressions.weight)
    before, _ = sums(sigmoid(predict(model, impressions)), labels, weight)
    shifts = calibrate(model, impressions)
    given, wanted = sums(sigmoid(predict(model, impressions)), labels, weight)
    assert shifts.shape == (members, len(schema.tasks))
    assert np.abs(before / wanted - 1).max() > 0.1
    np.testing.assert_allclose(given, wanted, rtol=1e-4)


def test_of_a_large_log_the_newest_requests_are_read_whole(impressions):
    some = calibration._newest(impressions, len(impressions) // 3)
    assert len(impressions) // 3 <= len(some) < len(impressions) / 2
    times = np.asarray(impressions.event_time)
    oldest = times[some.request_row].min()
    assert len(some) == (times[impressions.request_row] >= oldest).sum()


def test_a_run_is_calibrated_where_its_configuration_asks_for_it(schema, log, config, tmp_path):
    loop = msgspec.structs.replace(config.loop, epochs=1)
    asked = msgspec.structs.replace(config, loop=loop, validation_share=0.0, calibrate=True)
    run = train_heavy(schema, log, tmp_path / "run", asked)
    trained_on = read_impressions(schema, log, run.path / "examples")
    labels, weight = np.asarray(trained_on.labels), np.asarray(trained_on.weight)
    given, wanted = sums(sigmoid(predict(load_run(run.path).model, trained_on)), labels, weight)
    np.testing.assert_allclose(given, wanted, rtol=1e-4)
