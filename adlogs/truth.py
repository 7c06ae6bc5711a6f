"""The true probabilities of the simulated world.

    logit p(click)                = intercept + affinity + quality + trend + daypart + recency + fatigue + match terms
    logit p(conversion | click)   = intercept + affinity + quality + price fit + recency of conversions

Most of it is low rank (a taste meets a category), so a good two-tower keeps the top. What a dot product cannot fully
express: affinity is a maximum over tastes, fatigue a step in what a user clicked of one advertiser, topics count only
from two in common on, price matters outside a band that moves with income.

Shape letters: R requests, P ads in a pool, M tastes a user.
"""

from dataclasses import dataclass

import numpy as np

from adlogs.world import World

_CLICK_INTERCEPT = -4.9
_CONVERSION_INTERCEPT = -2.6
_RECENCY_DAYS = 2.0


@dataclass(frozen=True)
class RequestState:
    """What the truth needs to know of R requests."""

    user: np.ndarray  # int [R]
    hour: np.ndarray  # float [R], local
    click_age_days: np.ndarray  # float [R, C], since the user's last click in each category; inf for never
    conversion_age_days: np.ndarray  # float [R, C]
    advertiser_clicks: np.ndarray  # int [R, V]


@dataclass(frozen=True)
class Truth:
    """Probabilities per impression, float64 [R, P]."""

    click: np.ndarray
    conversion: np.ndarray


def true_probabilities(world: World, state: RequestState, live: np.ndarray, pool: np.ndarray) -> Truth:
    """Probabilities of each ad in the pool of each request.

    Args:
        live: Ads that the pools are drawn from, int [live].
        pool: Positions in `live`, int [R, P].
    """
    affinity = _affinity(world, state.user, live, pool)
    ads = live[pool]
    price_gap = _price_gap(world, state.user, ads)
    click = sigmoid(_click_logit(world, state, ads, affinity, price_gap))
    after_click = sigmoid(_conversion_logit(world, state, ads, affinity, price_gap))
    return Truth(click=click, conversion=click * after_click)


def sigmoid(logit: np.ndarray) -> np.ndarray:
    """The logistic function, float64."""
    return 1.0 / (1.0 + np.exp(-logit.astype(np.float64)))


def _affinity(world: World, user: np.ndarray, live: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """The best match of any taste: max over m of <taste_m, ad>, float32 [R, P]."""
    tastes = world.users.tastes[user]
    latent = world.ads.latent[live].T
    best = tastes[:, 0] @ latent
    for taste in range(1, tastes.shape[1]):
        np.maximum(best, tastes[:, taste] @ latent, out=best)
    return np.take_along_axis(best, pool, axis=1)


def _price_gap(world: World, user: np.ndarray, ads: np.ndarray) -> np.ndarray:
    """How far a price lies outside the user's band, 0 for ads without a price, float [R, P]."""
    distance = np.abs(world.ads.log_price[ads] - world.users.price_preference[user][:, None])
    return np.nan_to_num(np.clip(distance - 0.4, 0.0, 1.5))


def _click_logit(
    world: World, state: RequestState, ads: np.ndarray, affinity: np.ndarray, price_gap: np.ndarray
) -> np.ndarray:
    users, catalogue, user = world.users, world.ads, state.user
    category = catalogue.category[ads]
    phase = world.daypart_phase[category]
    daypart = 0.2 * np.cos(2 * np.pi * state.hour[:, None] / 24 - phase)
    recency = np.exp(-np.take_along_axis(state.click_age_days, category, axis=1) / _RECENCY_DAYS)
    common = np.bitwise_count(catalogue.topic_bits[ads] & users.interests[user][:, None])
    foreign = catalogue.language[ads] != users.language[user][:, None]
    speaks_english = 0.5 * (catalogue.language[ads] == 0)
    return (
        _CLICK_INTERCEPT
        + 3.0 * affinity
        + catalogue.quality[ads]
        + world.category_trend[category]
        + daypart
        + world.age_taste[users.age_band[user][:, None], category]
        + 0.7 * recency
        + _fatigue(np.take_along_axis(state.advertiser_clicks, catalogue.advertiser[ads], axis=1))
        + 0.45 * (common >= 2)
        - 0.8 * foreign * (1 - speaks_english)
        + world.format_device[catalogue.format[ads], users.device[user][:, None]]
        + users.clickiness[user][:, None]
        - 0.7 * price_gap
    )


def _fatigue(advertiser_clicks: np.ndarray) -> np.ndarray:
    """A first click makes the next likelier, from the third on they tire."""
    return np.where(advertiser_clicks >= 3, -0.7, np.where(advertiser_clicks >= 1, 0.35, 0.0))


def _conversion_logit(
    world: World, state: RequestState, ads: np.ndarray, affinity: np.ndarray, price_gap: np.ndarray
) -> np.ndarray:
    catalogue = world.ads
    age = np.take_along_axis(state.conversion_age_days, catalogue.category[ads], axis=1)
    just_bought = np.exp(-age / _RECENCY_DAYS)
    return (
        _CONVERSION_INTERCEPT
        + 1.2 * affinity
        + catalogue.conversion_quality[ads]
        - 0.9 * price_gap
        - 1.0 * just_bought
        + 0.25 * (world.users.income_band[state.user] >= 3)[:, None]
    )
