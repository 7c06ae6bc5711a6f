import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.dense import dense_transform, signed_log1p
from contracts.schema import Feature, Fitted

EDGES = (-1.0, 0.0, 2.0, 10.0)


def feature(transform: str, default: float | None = None, fitted: Fitted | None = None) -> Feature:
    return Feature(side="query", kind="dense", transform=transform, default=default, fitted=fitted)  # type: ignore[arg-type]


def rank(value: float) -> float:
    """The quantile transform, edge by edge."""
    if value <= EDGES[0]:
        return -1.0
    for at, (low, high) in enumerate(itertools.pairwise(EDGES)):
        if value <= high:
            return -1.0 + 2.0 * (at + (value - low) / (high - low)) / (len(EDGES) - 1)
    return 1.0


def log(value: float) -> float:
    return math.copysign(math.log(1 + abs(value)), value)


FORMULAS = {
    "none": (None, lambda x: x),
    "log1p": (None, log),
    "standardize": (Fitted(mean=3.0, std=2.0), lambda x: (x - 3.0) / 2.0),
    "log1p_standardize": (Fitted(mean=1.0, std=0.5), lambda x: (log(x) - 1.0) / 0.5),
    "quantile": (Fitted(edges=EDGES), rank),
}


@pytest.mark.parametrize("transform", FORMULAS)
@given(raw=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_a_transform_equals_its_formula(transform: str, raw: list[float]) -> None:
    fitted, formula = FORMULAS[transform]
    got = dense_transform(feature(transform, 0.0, fitted)).apply(np.array(raw))
    np.testing.assert_allclose(got, [formula(value) for value in raw], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transform", FORMULAS)
def test_a_missing_value_is_the_transformed_default(transform: str) -> None:
    fitted, formula = FORMULAS[transform]
    assert dense_transform(feature(transform, 1.5, fitted)).missing == pytest.approx(formula(1.5), rel=1e-15)


def test_without_a_default_a_missing_value_is_the_mean_of_the_output() -> None:
    assert dense_transform(feature("none", None, Fitted(mean=4.0))).missing == 4.0
    assert dense_transform(feature("log1p", None, Fitted(mean=1.25))).missing == 1.25
    assert dense_transform(feature("standardize", None, Fitted(mean=4.0, std=2.0))).missing == 0.0
    assert dense_transform(feature("log1p_standardize", None, Fitted(mean=4.0, std=2.0))).missing == 0.0
    assert dense_transform(feature("quantile", None, Fitted(edges=EDGES))).missing == 0.0


def test_one_edge_is_a_constant_feature() -> None:
    transform = dense_transform(feature("quantile", None, Fitted(edges=(5.0,))))
    assert transform.apply(np.array([-1.0, 5.0, 9.0])).tolist() == [0.0, 0.0, 0.0]


def test_log1p_keeps_the_sign_and_tiny_values() -> None:
    assert signed_log1p(np.array([-1e-20, 0.0, 1e-20])).tolist() == [-1e-20, 0.0, 1e-20]
