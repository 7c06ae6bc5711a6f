"""Trees: how a task of the chain is predicted from what was chosen, and which columns a setting reads."""

import numpy as np
import pytest

from benchmarks import trees
from benchmarks.flat_features import FlatFeatures
from benchmarks.trees import Choice, Chosen, Setting, Trained

SETTING = Setting(15, "numbers")


@pytest.fixture
def features():
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    return FlatFeatures(values, ["a", "b"], np.array([0, 0]))


@pytest.fixture
def labels():
    return np.array([[1, 1], [1, 0], [1, 0], [1, 0], [0, 0], [0, 0]], np.float64)


def _mean_of_labels(setting, features, labels, judge, seed):
    """A learner that knows the rate of its rows alone."""
    rate = float(labels.mean())
    return Trained(lambda values: np.full(len(values), rate), 3)


def test_a_chain_is_the_product_of_its_factors(features, labels):
    """The second factor is trained on the clicked rows alone: 4 of 6 times 1 of 4."""
    click, engage = Chosen(SETTING, 3, after=False), Chosen(SETTING, 3, after=True)
    choices = [Choice((click,), 0.5), Choice((click, engage), 0.5)]
    found = trees.predict(_mean_of_labels, choices, features, labels, features.values[:2], 0)
    np.testing.assert_allclose(found, [[4 / 6, 1 / 6]] * 2)


def test_a_task_alone_is_trained_on_all_rows(features, labels):
    alone = Chosen(SETTING, 3, after=False)
    choices = [Choice((alone,), 0.5), Choice((alone,), 0.5)]
    found = trees.predict(_mean_of_labels, choices, features, labels, features.values[:2], 0)
    np.testing.assert_allclose(found, [[4 / 6, 1 / 6]] * 2)


def test_the_better_setting_is_chosen(features, labels):
    """A learner that orders rows well with one setting alone."""

    def learner(setting, features, labels, judge, seed):
        sign = -1.0 if setting == trees.SETTINGS[2] else 1.0
        return Trained(lambda values: 0.5 + sign * values[:, 0] / 100, 7)

    choices = trees.choose(learner, features, labels, features, labels)
    assert choices[0] == Choice((Chosen(trees.SETTINGS[2], 7, after=False),), 1.0)


@pytest.mark.parametrize("name", trees.LEARNERS)
@pytest.mark.parametrize("setting", trees.SETTINGS[1:3], ids=str)
def test_libraries_learn_and_keep_to_their_trees(name, setting):
    generator = np.random.default_rng(0)
    ids = generator.integers(0, 5, 600)
    values = np.stack([generator.normal(size=600), ids, generator.integers(0, 1_000, 600)], 1).astype(np.float32)
    labels = (values[:, 0] + (ids == 2) > 0.5).astype(np.float64)
    features = FlatFeatures(values, ["number", "small", "large"], np.array([0, 5, 1_000]))
    judge = features.take(np.arange(300, 600)), labels[300:]
    trained = trees.LEARNERS[name](setting, features.take(np.arange(300)), labels[:300], judge, 0)
    again = trees.LEARNERS[name](setting, features, labels, 20, 0)
    assert 1 <= trained.num_trees <= trees.MOST_TREES
    assert again.num_trees == 20
    assert trees.auc(labels, again.predict(values)) > 0.9
