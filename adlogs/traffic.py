"""Who asks for ads when: the requests of one simulated day."""

from dataclasses import dataclass

import numpy as np

from adlogs import names
from adlogs.behaviour import MICROS_PER_DAY
from adlogs.world import World

_MICROS_PER_HOUR = MICROS_PER_DAY // 24
# Requests by local hour: quiet nights, a peak in the evening.
_HOUR_SHARE = np.array([2, 1, 1, 1, 1, 2, 3, 5, 6, 6, 5, 5, 6, 6, 5, 5, 6, 7, 8, 9, 10, 9, 7, 4], dtype=float)


@dataclass(frozen=True)
class Traffic:
    """The requests of one day in order of time, all arrays [R]; codes index the tuples in `names`."""

    user: np.ndarray
    time: np.ndarray  # int64, microseconds UTC
    hour: np.ndarray  # int, local to the user's country
    scenario: np.ndarray
    surface: np.ndarray
    country_known: np.ndarray  # bool


def draw_traffic(world: World, day_start: int, count: int, rng: np.random.Generator) -> Traffic:
    """Draw `count` requests of the day that starts at `day_start` (microseconds UTC)."""
    users = world.users
    user = rng.choice(len(users.activity), size=count, p=users.activity)
    local = rng.choice(24, size=count, p=_HOUR_SHARE / _HOUR_SHARE.sum())
    offset = np.array(names.COUNTRY_UTC_OFFSETS)[users.country[user]]
    within_hour = rng.integers(_MICROS_PER_HOUR // 1000, size=count) * 1000
    time = day_start + (local - offset) % 24 * _MICROS_PER_HOUR + within_hour
    order = np.argsort(time, kind="stable")
    scenario = rng.integers(len(names.SCENARIOS), size=count)
    surfaces = np.array(names.SCENARIO_SURFACES)
    surface = surfaces[scenario, rng.integers(surfaces.shape[1], size=count)]
    return Traffic(
        user=user[order],
        time=time[order],
        hour=local[order],
        scenario=scenario,
        surface=surface,
        country_known=rng.random(count) > 0.02,
    )
