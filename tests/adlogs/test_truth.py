import math

import msgspec
import numpy as np
import pytest

from adlogs import presets
from adlogs.truth import RequestState, sigmoid, true_probabilities
from adlogs.world import World, build_world


@pytest.fixture
def world() -> World:
    config = msgspec.structs.replace(presets.tiny(), num_users=12, ads_per_scenario=30, advertisers_per_scenario=5)
    return build_world(config, np.random.default_rng(3))


def state_of(world: World, num_requests: int) -> RequestState:
    random = np.random.default_rng(4)
    num_categories, num_advertisers = len(world.category_trend), len(world.advertiser_size)
    return RequestState(
        user=random.integers(len(world.users.country), size=num_requests),
        hour=random.integers(24, size=num_requests),
        click_age_days=random.exponential(3.0, size=(num_requests, num_categories)),
        conversion_age_days=random.exponential(3.0, size=(num_requests, num_categories)),
        advertiser_clicks=random.integers(5, size=(num_requests, num_advertisers)),
    )


def slow_probabilities(world: World, state: RequestState, request: int, ad: int) -> tuple[float, float]:
    """Click and conversion of one pair, written out term by term."""
    users, ads, user = world.users, world.ads, state.user[request]
    category, advertiser = ads.category[ad], ads.advertiser[ad]
    affinity = max(float(taste @ ads.latent[ad]) for taste in users.tastes[user])
    gap = 0.0
    if not math.isnan(ads.log_price[ad]):
        gap = min(max(abs(ads.log_price[ad] - users.price_preference[user]) - 0.4, 0.0), 1.5)
    clicked = state.advertiser_clicks[request, advertiser]
    topics = {topic for topic in range(64) if int(users.interests[user]) >> topic & 1}
    click = -4.9 + 3.0 * affinity + ads.quality[ad] + world.category_trend[category]
    click += 0.2 * math.cos(2 * math.pi * state.hour[request] / 24 - world.daypart_phase[category])
    click += world.age_taste[users.age_band[user], category] + users.clickiness[user] - 0.7 * gap
    click += 0.7 * math.exp(-state.click_age_days[request, category] / 2)
    click += -0.7 if clicked >= 3 else 0.35 if clicked else 0.0
    click += 0.45 if len(topics & set(ads.topics[ad].tolist())) >= 2 else 0.0
    if ads.language[ad] != users.language[user]:
        click -= 0.4 if ads.language[ad] == 0 else 0.8
    click += world.format_device[ads.format[ad], users.device[user]]
    after = -2.6 + 1.2 * affinity + ads.conversion_quality[ad] - 0.9 * gap
    after += 0.25 * (users.income_band[user] >= 3)
    after -= math.exp(-state.conversion_age_days[request, category] / 2)
    probability = 1 / (1 + math.exp(-click))
    return probability, probability / (1 + math.exp(-after))


@pytest.mark.parametrize("scenario", [0, 1])
def test_truth_equals_the_formula_pair_by_pair(world: World, scenario: int) -> None:
    state, live = state_of(world, 6), world.live(scenario, block=3)
    pool = np.stack([np.random.default_rng(row).permutation(len(live))[:9] for row in range(6)])
    truth = true_probabilities(world, state, live, pool)
    for request in range(6):
        for column in range(9):
            click, conversion = slow_probabilities(world, state, request, int(live[pool[request, column]]))
            assert truth.click[request, column] == pytest.approx(click, rel=1e-5)
            assert truth.conversion[request, column] == pytest.approx(conversion, rel=1e-5)


def test_no_dot_product_gives_the_affinity() -> None:
    """With several tastes a user, the matrix of best matches has a rank beyond the latent width."""
    world = build_world(presets.tiny(), np.random.default_rng(3))
    best = np.einsum("umd,ad->uma", world.users.tastes, world.ads.latent).max(axis=1)
    spectrum = np.linalg.svd(best, compute_uv=False)
    width = world.ads.latent.shape[1]
    beyond = (spectrum[width:] ** 2).sum() / (spectrum**2).sum()
    assert 0.005 < beyond < 0.2


def test_sigmoid() -> None:
    assert sigmoid(np.array([0.0, math.log(3.0)])).tolist() == pytest.approx([0.5, 0.75])
