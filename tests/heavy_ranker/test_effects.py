import numpy as np
import pytest

from contracts.errors import InputError
from heavy_ranker.effects import factorial_effects

GRID = {
    "width": [5, 5, 5, 5, 6, 6, 6, 6, 5, 5, 5, 5, 6, 6, 6, 6],
    "layers": [1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2],
    "days": [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1],
}


def responses(interaction, noise=0.01):
    width, layers, days = (np.array(GRID[name], float) for name in ("width", "layers", "days"))
    base = 10 - 2 * width - 0.5 * layers - days + interaction * (width - 5.5) * (days - 0.5)
    return base + noise * np.random.default_rng(0).normal(size=len(base))


def by_name(effects):
    return {effect.name: effect for effect in effects}


def test_effects_equal_differences_of_means():
    response = responses(interaction=0.7)
    found = by_name(factorial_effects(GRID, response))
    for name, values in GRID.items():
        high = np.array(values) == max(values)
        assert found[name].value == pytest.approx(response[high].mean() - response[~high].mean())


def test_a_true_interaction_is_found_and_a_false_one_is_not():
    found = by_name(factorial_effects(GRID, responses(interaction=0.7)))
    assert found["width x days"].low < 0.7 < found["width x days"].high
    assert not found["width x days"].is_zero_plausible
    assert found["width x layers"].is_zero_plausible
    assert found["layers x days"].is_zero_plausible


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng, hits, rounds = np.random.default_rng(1), 0, 400
    for _ in range(rounds):
        effect = by_name(factorial_effects(GRID, rng.normal(size=16), confidence=0.9))["width x days"]
        hits += effect.is_zero_plausible
    assert 0.86 < hits / rounds < 0.94


def test_constant_factors_are_left_out():
    found = by_name(factorial_effects(GRID | {"embedding": [1.0] * 16}, responses(0.0)))
    assert not any("embedding" in name for name in found)


def test_without_spare_runs_the_intervals_are_infinite():
    effects = factorial_effects({"width": [0, 1, 0, 1], "days": [0, 0, 1, 1]}, [4.0, 3.0, 2.0, 1.0])
    assert all(effect.low == -np.inf and effect.high == np.inf for effect in effects)


def test_factors_that_move_together_are_refused():
    with pytest.raises(InputError, match="4 runs cannot tell 4 coefficients apart"):
        factorial_effects({"width": [0, 0, 1, 1], "days": [0, 0, 1, 1]}, [1.0, 2.0, 3.0, 4.0])
