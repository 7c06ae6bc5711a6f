"""The simulated world before any request: users with latent interests, advertisers, ads, and how they change by day.

Shape letters: U users, A ads over the whole simulation, V advertisers, C categories, D latent width, M tastes a user.
"""

from dataclasses import dataclass

import numpy as np

from adlogs import names
from adlogs.presets import SimulationConfig

LATENT_DIM = 5
IMAGE_DIM = 16
PROFILE_DIM = 16
NUM_TOPICS = 48
TOPICS_PER_AD = 3
NUM_TASTES = 3
TASTE_WEIGHTS = np.array([1.0, 0.85, 0.7], dtype=np.float32)
BLOCKS_PER_DAY = 4  # ads, bids and histories change only between blocks
NEVER = np.iinfo(np.int32).max

_PROFILE_SCALE = 2.7  # gives profiles a spread of about 1
_CLICK_BID = 0.5  # currency units; other objectives are scaled to a comparable value per impression
_OBJECTIVE_SCALE = np.array([0.022, 1.0, 6.0])
_OBJECTIVE_WEIGHTS = (0.12, 0.56, 0.32)


@dataclass
class Users:
    """Columns of U users. Codes index the tuples in `names`; -1 is a missing value."""

    country: np.ndarray  # int [U]
    language: np.ndarray
    device: np.ndarray
    age_band: np.ndarray
    age_band_known: np.ndarray  # bool, whether the log has it, as for the next
    income_band: np.ndarray  # 0..4
    income_band_known: np.ndarray
    price_preference: np.ndarray  # float [U], log price that suits the user
    tastes: np.ndarray  # float32 [U, M, D], unit vectors times their weight
    profile_projection: np.ndarray  # float32 [M * D, 16]
    profile: np.ndarray  # float32 [U, 16], what an embedding of the user made elsewhere shows of the tastes
    interests: np.ndarray  # uint64 [U], one bit for each topic in the profile
    interests_known: np.ndarray  # bool [U]
    clickiness: np.ndarray  # float [U], added to every click logit
    activity: np.ndarray  # float [U], share of requests


@dataclass
class Ads:
    """Columns of A ads. Block numbers count from the first simulated block, warm-up included."""

    scenario: np.ndarray  # int [A]
    category: np.ndarray
    advertiser: np.ndarray
    language: np.ndarray
    format: np.ndarray
    objective: np.ndarray
    topics: np.ndarray  # int [A, 3]
    topic_bits: np.ndarray  # uint64 [A]
    latent: np.ndarray  # float32 [A, D], unit vectors
    image: np.ndarray  # float32 [A, 16]
    quality: np.ndarray  # float [A], drifts
    creative_score: np.ndarray  # float [A], quality as judged before launch
    conversion_quality: np.ndarray
    landing_score: np.ndarray  # float [A], conversion quality as judged before launch
    log_price: np.ndarray  # NaN for standard ads
    brand: np.ndarray  # -1 for standard ads
    bid: np.ndarray  # changes between blocks
    created: np.ndarray  # first block in which the ad lives; <= 0 for those from before
    paused: np.ndarray  # first block in which it no longer does
    price_missing: np.ndarray  # bool [A], the log lacks the price
    image_missing: np.ndarray


@dataclass
class World:
    """Everything that exists; mutated by `advance_day` only."""

    users: Users
    ads: Ads
    advertiser_size: np.ndarray  # int [V]
    topics: np.ndarray  # float32 [NUM_TOPICS, D]
    category_trend: np.ndarray  # float [C], drifts
    daypart_phase: np.ndarray  # float [C]
    age_taste: np.ndarray  # float [age bands, C]
    format_device: np.ndarray  # float [formats, devices]

    def live(self, scenario: int, block: int) -> np.ndarray:
        """Ads of a scenario that live in a block, int [live]."""
        ads = self.ads
        return np.flatnonzero((ads.scenario == scenario) & (ads.created <= block) & (ads.paused > block))


def build_world(config: SimulationConfig, rng: np.random.Generator) -> World:
    """Draw a world whose ads of all days exist from the start, each with the block in which it appears."""
    centres = _unit(rng.normal(size=(len(names.CATEGORIES), LATENT_DIM)))
    topic_home = np.arange(NUM_TOPICS) % len(names.CATEGORIES)
    topics = _unit(centres[topic_home] + 0.6 * rng.normal(size=(NUM_TOPICS, LATENT_DIM)) / np.sqrt(LATENT_DIM))
    advertiser_size = rng.choice(3, size=2 * config.advertisers_per_scenario, p=(0.6, 0.3, 0.1))
    return World(
        users=_build_users(config, topics, rng),
        ads=_build_ads(config, centres, topics, advertiser_size, rng),
        advertiser_size=advertiser_size,
        topics=topics,
        category_trend=rng.normal(scale=0.2, size=len(names.CATEGORIES)),
        daypart_phase=rng.uniform(0, 2 * np.pi, size=len(names.CATEGORIES)),
        age_taste=rng.normal(scale=0.4, size=(len(names.AGE_BANDS), len(names.CATEGORIES))),
        format_device=rng.normal(scale=0.25, size=(len(names.FORMATS), len(names.DEVICES))),
    )


def advance_day(world: World, rng: np.random.Generator) -> None:
    """Drift: category trends and ad quality walk, and a few users take up a new taste."""
    ads, users = world.ads, world.users
    world.category_trend += rng.normal(scale=0.08, size=len(world.category_trend))
    ads.quality += rng.normal(scale=0.02, size=len(ads.quality))
    changed = np.flatnonzero(rng.random(len(users.country)) < 0.02)
    users.tastes[changed, -1] = TASTE_WEIGHTS[-1] * _unit(rng.normal(size=(len(changed), LATENT_DIM)))
    users.profile[changed] = _profiles(users.tastes[changed], users.profile_projection, rng)
    users.interests[changed] = _interests(users.tastes[changed], world.topics, rng)


def change_bids(world: World, live: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Move the bids of a share of the live ads; returns which, int [changed]."""
    changed = live[rng.random(len(live)) < share]
    world.ads.bid[changed] *= np.exp(rng.normal(scale=0.15, size=len(changed)))
    return changed


def _build_users(config: SimulationConfig, topics: np.ndarray, rng: np.random.Generator) -> Users:
    num = config.num_users
    country = rng.choice(len(names.COUNTRIES), size=num, p=names.COUNTRY_WEIGHTS)
    main_language = np.array(names.COUNTRY_LANGUAGES)[country]
    language = np.where(rng.random(num) < 0.9, main_language, rng.integers(len(names.LANGUAGES), size=num))
    income = rng.choice(5, size=num, p=(0.15, 0.25, 0.3, 0.2, 0.1))
    leaning = _unit(rng.normal(size=(num, 1, LATENT_DIM)))
    tastes = _unit(leaning + 0.6 * _unit(rng.normal(size=(num, NUM_TASTES, LATENT_DIM)))) * TASTE_WEIGHTS[:, None]
    rotation = np.linalg.qr(rng.normal(size=(PROFILE_DIM, PROFILE_DIM)))[0]
    projection = rotation[: NUM_TASTES * LATENT_DIM]
    activity = rng.lognormal(sigma=0.8, size=num)
    return Users(
        country=country,
        language=language,
        device=rng.choice(len(names.DEVICES), size=num, p=names.DEVICE_WEIGHTS),
        age_band=rng.integers(len(names.AGE_BANDS), size=num),
        age_band_known=rng.random(num) > 0.06,
        income_band=income,
        income_band_known=rng.random(num) > 0.06,
        price_preference=-1.2 + 0.6 * income + rng.normal(scale=0.1, size=num),
        tastes=tastes,
        profile_projection=projection,
        profile=_profiles(tastes, projection, rng),
        interests=_interests(tastes, topics, rng),
        interests_known=rng.random(num) > 0.05,
        clickiness=rng.normal(scale=0.1, size=num),
        activity=activity / activity.sum(),
    )


def _build_ads(
    config: SimulationConfig, centres: np.ndarray, topics: np.ndarray, size: np.ndarray, rng: np.random.Generator
) -> Ads:
    created, scenario = _creation_blocks(config, rng)
    num, per_scenario = len(created), len(names.STANDARD_CATEGORIES)
    category = rng.integers(per_scenario, size=num) + per_scenario * scenario
    advertiser = _draw_advertisers(config, scenario, size, rng)
    latent = _unit(centres[category] + 0.75 * rng.normal(size=(num, LATENT_DIM)) / np.sqrt(LATENT_DIM))
    closeness = latent @ topics.T + 0.15 * rng.normal(size=(num, NUM_TOPICS))
    top = np.argsort(-closeness, axis=1)[:, :TOPICS_PER_AD]
    shopping = scenario == 1
    objective = rng.choice(3, size=num, p=_OBJECTIVE_WEIGHTS)
    projection = rng.normal(size=(LATENT_DIM, IMAGE_DIM)) / np.sqrt(LATENT_DIM)
    image = latent @ projection + 0.05 * rng.normal(size=(num, IMAGE_DIM))
    advertiser_quality = rng.normal(scale=0.25, size=len(size))
    quality = advertiser_quality[advertiser] + rng.normal(scale=0.5, size=num)
    value = _CLICK_BID * rng.lognormal(sigma=0.3, size=num) * (1 + 0.1 * size[advertiser])
    lifetime_blocks = rng.exponential(BLOCKS_PER_DAY / config.churn, size=num).astype(np.int64) + 1
    language = rng.choice(len(names.LANGUAGES), size=num, p=(0.62, 0.1, 0.08, 0.06, 0.04, 0.04, 0.04, 0.02))
    ad_format = rng.integers(len(names.FORMATS), size=num)
    creative_score = quality + rng.normal(scale=0.05, size=num)
    conversion_quality = rng.normal(scale=0.35, size=len(size))[advertiser] + rng.normal(scale=0.3, size=num)
    return Ads(
        scenario=scenario,
        category=category,
        advertiser=advertiser,
        language=language,
        format=ad_format,
        objective=objective,
        topics=top,
        topic_bits=_bits(top),
        latent=latent,
        image=(image / image.std()).astype(np.float32),
        quality=quality,
        creative_score=creative_score,
        conversion_quality=conversion_quality,
        landing_score=conversion_quality + rng.spawn(1)[0].normal(scale=0.05, size=num),
        log_price=np.where(shopping, rng.normal(scale=0.9, size=num), np.nan),
        brand=np.where(shopping, advertiser * 2 + rng.integers(2, size=num), -1),
        bid=value * _OBJECTIVE_SCALE[objective],
        created=created,
        paused=np.where(created <= 0, lifetime_blocks, created + lifetime_blocks),
        price_missing=rng.random(num) < 0.03,
        image_missing=rng.random(num) < 0.01,
    )


def _creation_blocks(config: SimulationConfig, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Creation block and scenario of every ad: a stock from before (blocks -240..0), then cold ads each day."""
    stock = config.ads_per_scenario
    cold = (config.num_days + config.warmup_days) * round(config.churn * stock)
    blocks, scenarios = [], []
    for scenario in range(len(names.SCENARIOS)):
        fresh = rng.integers(1, (config.num_days + config.warmup_days) * BLOCKS_PER_DAY, size=cold)
        blocks.append(np.concatenate([-rng.integers(0, 240, size=stock), np.sort(fresh)]))
        scenarios.append(np.full(stock + cold, scenario))
    return np.concatenate(blocks), np.concatenate(scenarios)


def _draw_advertisers(
    config: SimulationConfig, scenario: np.ndarray, size: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Advertiser of each ad: large ones own many ads."""
    per_scenario = config.advertisers_per_scenario
    advertiser = np.empty(len(scenario), dtype=np.int64)
    for code in range(len(names.SCENARIOS)):
        mine = np.flatnonzero(scenario == code)
        first = code * per_scenario
        share = np.array([1.0, 4.0, 16.0])[size[first : first + per_scenario]]
        advertiser[mine] = first + rng.choice(per_scenario, size=len(mine), p=share / share.sum())
    return advertiser


def _profiles(tastes: np.ndarray, projection: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A linear view of all tastes with a little noise and a spread of about 1, float32 [U, 16]."""
    seen = tastes.reshape(len(tastes), -1) @ projection * _PROFILE_SCALE
    return (seen + 0.05 * rng.normal(size=seen.shape)).astype(np.float32)


def _interests(tastes: np.ndarray, topics: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The two topics nearest to each taste as a profile would infer them, uint64 [U]."""
    closeness = tastes @ topics.T + 0.1 * rng.normal(size=(*tastes.shape[:2], len(topics)))
    nearest = np.argsort(-closeness, axis=2)[:, :, :2]
    return _bits(nearest.reshape(len(tastes), 2 * tastes.shape[1]))


def _bits(topics: np.ndarray) -> np.ndarray:
    """A set of topics in each row as a bit mask."""
    return np.bitwise_or.reduce(np.uint64(1) << topics.astype(np.uint64), axis=1, initial=np.uint64(0))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)
