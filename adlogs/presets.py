"""The frozen worlds that `adsieve simulate` can make, and how well their own truth predicts them."""

from collections.abc import Callable

import msgspec

from contracts.errors import ConfigError


class SimulationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of one simulated auction log. A pool is the set of eligible ads that one request starts with."""

    seed: int
    num_days: int
    requests_per_day: int
    num_users: int
    ads_per_scenario: int  # live at any moment, in each scenario
    advertisers_per_scenario: int
    pool: int  # eligible ads of an ordinary request
    num_candidates: int  # of these, how many reach downstream ranking
    num_winners: int  # and how many are shown
    logged_candidates: int  # unshown candidates that an ordinary request logs
    logged_eligible: int  # dropped ads that an ordinary request logs
    full_requests: int  # requests of the last day, per scenario, that log their whole pool
    full_pool: int
    full_candidates: int
    warmup_days: int = 3  # simulated before the log begins, not written
    churn: float = 0.04  # share of live ads replaced each day by cold ones
    explore_rate: float = 0.25  # share of requests whose last slot goes to a random eligible ad


def tiny() -> SimulationConfig:
    """Seconds: for tests."""
    return SimulationConfig(
        seed=7,
        num_days=3,
        requests_per_day=200,
        num_users=150,
        ads_per_scenario=160,
        advertisers_per_scenario=24,
        pool=80,
        num_candidates=20,
        num_winners=6,
        logged_candidates=4,
        logged_eligible=6,
        full_requests=4,
        full_pool=100,
        full_candidates=25,
    )


def demo() -> SimulationConfig:
    """What `adsieve demo` trains on; its last day holds requests with exactly 1,000 eligible ads, all logged."""
    return SimulationConfig(
        seed=7,
        num_days=10,
        requests_per_day=2_000,
        num_users=3_000,
        ads_per_scenario=3_000,
        advertisers_per_scenario=240,
        pool=240,
        num_candidates=40,
        num_winners=8,
        logged_candidates=10,
        logged_eligible=14,
        full_requests=64,
        full_pool=1_000,
        full_candidates=100,
    )


def million() -> SimulationConfig:
    """A million candidate rows over 14 days."""
    return SimulationConfig(
        seed=7,
        num_days=14,
        requests_per_day=2_200,
        num_users=10_000,
        ads_per_scenario=5_000,
        advertisers_per_scenario=400,
        pool=240,
        num_candidates=40,
        num_winners=8,
        logged_candidates=10,
        logged_eligible=14,
        full_requests=64,
        full_pool=1_000,
        full_candidates=100,
    )


def large() -> SimulationConfig:
    """More than three million shown ads over 8 days, and few that were not: for judging a heavy ranker by the truth."""
    return SimulationConfig(
        seed=7,
        num_days=8,
        requests_per_day=50_000,
        num_users=50_000,
        ads_per_scenario=5_000,
        advertisers_per_scenario=400,
        pool=240,
        num_candidates=40,
        num_winners=8,
        logged_candidates=2,
        logged_eligible=2,
        full_requests=64,
        full_pool=1_000,
        full_candidates=100,
    )


PRESETS: dict[str, Callable[[], SimulationConfig]] = {"tiny": tiny, "demo": demo, "million": million, "large": large}


def load_preset(name: str) -> SimulationConfig:
    """The named preset.

    Raises:
        ConfigError: There is no preset of that name.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]()


# What predicting by the truth itself costs: log loss of click and of conversion per impression, over shown rows with
# known labels, at the presets' own seeds. No model can expect to do better.
TRUTH_LOG_LOSS = {
    "tiny": {"click": 0.2247, "conversion": 0.0549},
    "demo": {"click": 0.2759, "conversion": 0.0688},
    "million": {"click": 0.2529, "conversion": 0.0653},
    "large": {"click": 0.2806, "conversion": 0.0703},
}
