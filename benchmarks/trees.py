"""Gradient-boosted trees on the features of the heavy ranker, each library at its best of several settings.

Settings and the number of trees are chosen on the validation rows; the model that is judged is trained on training and
validation rows together. A later task of the chain is tried directly and as the product of the chain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from benchmarks.flat_features import FlatFeatures
from contracts.metrics import auc

MOST_TREES = 1_000
PATIENCE = 40
MOST_CATEGORIES = 200
"""Ids of larger tables are no categories: trees learn those by heart, and HistGradientBoosting takes 255 at most."""


class Predict(Protocol):
    """Probabilities [N] of rows [N, F]."""

    def __call__(self, values: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Setting:
    """What is tried.

    Args:
        leaves: Most leaves of a tree.
        ids: All ids as numbers, or those of small tables alone, as categories.
    """

    leaves: int
    ids: Literal["numbers", "categories"]

    def __str__(self) -> str:
        return f"{self.leaves} leaves, ids as {self.ids}"


SETTINGS = [
    Setting(15, "numbers"),
    Setting(31, "numbers"),
    Setting(15, "categories"),
    Setting(31, "categories"),
]


@dataclass(frozen=True)
class Trained:
    """One model of one task, and how many trees its validation rows wanted."""

    predict: Predict
    num_trees: int


Judge = tuple[FlatFeatures, np.ndarray] | int
"""What ends the training: validation rows and their labels, or a number of trees."""

Learner = Callable[[Setting, FlatFeatures, np.ndarray, Judge, int], Trained]
"""From a setting, features, labels, judge and seed."""


@dataclass(frozen=True)
class Chosen:
    """The setting of one factor of a prediction. ``after`` marks a model of rows that had the task before."""

    setting: Setting
    num_trees: int
    after: bool

    def __str__(self) -> str:
        return f"{self.num_trees} trees of {self.setting}{', after the task before' if self.after else ''}"


@dataclass(frozen=True)
class Choice:
    """How the best trees of one task predict: the product of these, and the validation AUC that chose them."""

    factors: tuple[Chosen, ...]
    auc: float

    def __str__(self) -> str:
        return f"{' x '.join(map(str, self.factors))}; validation AUC {self.auc:.4f}"


def choose(
    learner: Learner, training: FlatFeatures, labels: np.ndarray, validation: FlatFeatures, known: np.ndarray
) -> list[Choice]:
    """The best setting of each task by AUC on the validation rows.

    Args:
        learner: One of the libraries.
        training: [N, F].
        labels: [N, K], tasks in the order of the chain.
        validation: [M, F].
        known: [M, K], its labels.
    """
    choices: list[Choice] = []
    before = np.ones(len(known))
    for task in range(labels.shape[1]):
        tried: list[tuple[Choice, np.ndarray]] = []
        for setting in SETTINGS:
            trained = learner(setting, training, labels[:, task], (validation, known[:, task]), 0)
            predicted = trained.predict(validation.values)
            factors: tuple[Chosen, ...] = (Chosen(setting, trained.num_trees, after=False),)
            tried.append((Choice(factors, auc(known[:, task], predicted)), predicted))
            if task:
                rows, held = labels[:, task - 1] == 1, known[:, task - 1] == 1
                judged = validation.take(held), known[held, task]
                trained = learner(setting, training.take(rows), labels[rows, task], judged, 0)
                predicted = before * trained.predict(validation.values)
                factors = (*choices[-1].factors, Chosen(setting, trained.num_trees, after=True))
                tried.append((Choice(factors, auc(known[:, task], predicted)), predicted))
        best, before = max(tried, key=lambda pair: pair[0].auc)
        choices.append(best)
    return choices


def predict(
    learner: Learner, choices: Sequence[Choice], training: FlatFeatures, labels: np.ndarray, test: np.ndarray, seed: int
) -> np.ndarray:
    """Train what was chosen on all training rows; probabilities [N, K] of the test rows."""
    columns = []
    done: dict[tuple[int, Chosen], np.ndarray] = {}
    for task, choice in enumerate(choices):
        column = np.ones(len(test))
        for at, chosen in enumerate(choice.factors):
            # the factors of a chain are its tasks in order; alone, a factor is the task itself
            of = at if len(choice.factors) > 1 else task
            if (of, chosen) not in done:
                rows = labels[:, of - 1] == 1 if chosen.after else np.ones(len(labels), bool)
                fitted = learner(chosen.setting, training.take(rows), labels[rows, of], chosen.num_trees, seed)
                done[of, chosen] = fitted.predict(test)
            column = column * done[of, chosen]
        columns.append(column)
    return np.stack(columns, axis=1)


def lightgbm(
    setting: Setting,
    features: FlatFeatures,
    labels: np.ndarray,
    judge: tuple[FlatFeatures, np.ndarray] | int,
    seed: int,
) -> Trained:
    """LightGBM with sampled rows and features."""
    import lightgbm as lgb

    columns, categories = _columns(setting, features.cardinality)
    parameters: dict[str, Any] = {
        "objective": "binary",
        "learning_rate": 0.05,
        "num_leaves": setting.leaves,
        "min_data_in_leaf": 100,
        "feature_fraction": 0.5,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "lambda_l2": 10.0,
        "cat_smooth": 50.0,
        "seed": seed,
        "verbose": -1,
    }
    data = lgb.Dataset(
        np.take(features.values, columns, axis=1), labels, categorical_feature=np.flatnonzero(categories).tolist()
    )
    if isinstance(judge, int):
        booster = lgb.train(parameters, data, judge)
    else:
        held = lgb.Dataset(np.take(judge[0].values, columns, axis=1), judge[1], reference=data)
        stop = lgb.early_stopping(PATIENCE, verbose=False)
        booster = lgb.train(parameters, data, MOST_TREES, valid_sets=[held], callbacks=[stop])
    num_trees = booster.best_iteration if booster.best_iteration > 0 else booster.current_iteration()
    return Trained(
        lambda values: np.asarray(booster.predict(np.take(values, columns, axis=1), num_iteration=num_trees)), num_trees
    )


def hist_gradient_boosting(
    setting: Setting,
    features: FlatFeatures,
    labels: np.ndarray,
    judge: tuple[FlatFeatures, np.ndarray] | int,
    seed: int,
) -> Trained:
    """scikit-learn's HistGradientBoostingClassifier with sampled features."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    columns, categories = _columns(setting, features.cardinality)
    alone = isinstance(judge, int)
    model = HistGradientBoostingClassifier(
        learning_rate=0.05,
        max_leaf_nodes=setting.leaves,
        min_samples_leaf=100,
        l2_regularization=10.0,
        max_features=0.5,
        categorical_features=categories,
        max_iter=judge if isinstance(judge, int) else MOST_TREES,
        early_stopping=not alone,
        n_iter_no_change=PATIENCE,
        tol=0.0,
        random_state=seed,
    )
    if isinstance(judge, int):
        model.fit(np.take(features.values, columns, axis=1), labels)
        num_trees = judge
    else:
        model.fit(
            np.take(features.values, columns, axis=1),
            labels,
            X_val=np.take(judge[0].values, columns, axis=1),
            y_val=judge[1],
        )
        num_trees = max(int(np.argmax(model.validation_score_)), 1)
    return Trained(lambda values: model.predict_proba(np.take(values, columns, axis=1))[:, 1], num_trees)


LEARNERS: dict[str, Learner] = {"LightGBM": lightgbm, "HistGradientBoosting": hist_gradient_boosting}


def _columns(setting: Setting, cardinality: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the columns that a setting reads, and which of these are categories."""
    is_small = (cardinality > 0) & (cardinality <= MOST_CATEGORIES)
    if setting.ids == "numbers":
        return np.arange(len(cardinality)), np.zeros(len(cardinality), bool)
    columns = np.flatnonzero((cardinality == 0) | is_small)
    return columns, is_small[columns]
