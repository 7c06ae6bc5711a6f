import numpy as np
import pytest

from adlogs.auction import CANDIDATE, ELIGIBLE, WINNER, Funnel, Outcome, run_policy, true_utility
from adlogs.truth import Truth

REQUESTS, POOL = 4_000, 30
FUNNEL = Funnel(num_candidates=10, num_winners=4, explore_rate=0.25, logged_candidates=3, logged_eligible=5)


@pytest.fixture(scope="module")
def utility() -> np.ndarray:
    return np.random.default_rng(0).lognormal(size=(REQUESTS, POOL))


@pytest.fixture(scope="module")
def outcome(utility: np.ndarray) -> Outcome:
    return run_policy(np.ones_like(utility), utility, FUNNEL, np.random.default_rng(1))


def test_utility_pays_for_the_objective() -> None:
    truth = Truth(click=np.full((1, 3), 0.1), conversion=np.full((1, 3), 0.02))
    utility = true_utility(truth, np.array([[1.0, 2.0, 50.0]]), np.array([[0, 1, 2]]))
    assert utility.tolist() == [pytest.approx([1.0, 0.2, 1.0])]


def test_each_request_fills_its_slots_once(outcome: Outcome) -> None:
    assert ((outcome.stage == WINNER).sum(axis=1) == FUNNEL.num_winners).all()
    for slot in range(1, FUNNEL.num_winners + 1):
        assert ((outcome.position == slot).sum(axis=1) == 1).all()
    assert np.array_equal(outcome.position > 0, outcome.stage == WINNER)
    # An explored ad may come from outside the candidates, and then adds one.
    reached = (outcome.stage >= CANDIDATE).sum(axis=1)
    assert set(reached.tolist()) == {FUNNEL.num_candidates, FUNNEL.num_candidates + 1}


def test_the_policy_prefers_better_ads(outcome: Outcome, utility: np.ndarray) -> None:
    means = [utility[outcome.stage == stage].mean() for stage in (ELIGIBLE, CANDIDATE, WINNER)]
    assert means == sorted(means)


def test_exploration_shows_each_other_ad_with_its_logged_propensity(outcome: Outcome) -> None:
    explored = ~np.isnan(outcome.propensity)
    assert (outcome.position[explored] == FUNNEL.num_winners).all()
    others = POOL - FUNNEL.num_winners + 1
    assert outcome.propensity[explored] == pytest.approx(FUNNEL.explore_rate / others)
    rate = explored.any(axis=1).mean()
    assert rate == pytest.approx(FUNNEL.explore_rate, abs=4 * np.sqrt(0.25 * 0.75 / REQUESTS))


def test_without_exploration_the_winners_are_candidates(utility: np.ndarray) -> None:
    funnel = Funnel(num_candidates=10, num_winners=4, explore_rate=0.0)
    outcome = run_policy(np.ones_like(utility), utility, funnel, np.random.default_rng(1))
    assert np.isnan(outcome.propensity).all()
    assert ((outcome.stage >= CANDIDATE).sum(axis=1) == 10).all()


def test_logged_rows_stand_for_the_whole_pool(outcome: Outcome) -> None:
    weight = np.where(outcome.logged, outcome.weight, 0.0)
    for stage in (ELIGIBLE, CANDIDATE, WINNER):
        members = outcome.stage == stage
        assert (weight * members).sum(axis=1) == pytest.approx(members.sum(axis=1))
    assert outcome.logged[outcome.stage == WINNER].all()
    sampled = outcome.logged & (outcome.stage == ELIGIBLE)
    assert (sampled.sum(axis=1) == FUNNEL.logged_eligible).all()


def test_a_funnel_without_limits_logs_everything(utility: np.ndarray) -> None:
    funnel = Funnel(num_candidates=10, num_winners=4, explore_rate=0.25)
    outcome = run_policy(np.ones_like(utility), utility, funnel, np.random.default_rng(1))
    assert outcome.logged.all()
    assert (outcome.weight == 1).all()
