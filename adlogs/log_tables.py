"""Arrow tables of a simulated day, in the columns that the log contract names."""

import numpy as np
import pyarrow as pa

from adlogs import names
from adlogs.behaviour import Sequences
from adlogs.simulated_rows import SimulatedDay
from adlogs.simulation import mature
from adlogs.world import IMAGE_DIM, NUM_TOPICS, PROFILE_DIM, Users, World

TIMESTAMP = pa.timestamp("us", tz="UTC")
_TOPIC_NAMES = pa.array([f"topic {topic}" for topic in range(NUM_TOPICS)])
_STAGES = ("eligible", "candidate", "winner")


class Names:
    """The texts of a world as Arrow arrays, indexed by code; a code of -1 gives null."""

    def __init__(self, num_users: int, ad_advertisers: np.ndarray) -> None:
        self.users = pa.array([names.user_id(index) for index in range(num_users)])
        self.ads = pa.array([names.ad_id(index) for index in range(len(ad_advertisers))])
        num_advertisers = int(ad_advertisers.max()) + 1
        self.advertisers = pa.array([names.advertiser_id(index) for index in range(num_advertisers)])
        self.brands = pa.array([names.brand(index) for index in range(2 * num_advertisers)])


def requests_table(day: SimulatedDay, world: World, texts: Names) -> pa.Table:
    """The `requests/` rows of a day."""
    users, traffic, user = world.users, day.traffic, day.traffic.user
    country = np.where(traffic.country_known, users.country[user], -1)
    columns = {
        "request_id": _request_ids(day),
        "event_time": pa.array(traffic.time, TIMESTAMP),
        "scenario": _text(names.SCENARIOS, traffic.scenario),
        "user_id": texts.users.take(pa.array(user)),
        "country": _text(names.COUNTRIES, country),
        "language": _text(names.LANGUAGES, users.language[user]),
        "device": _text(names.DEVICES, users.device[user]),
        "surface": _text(names.SURFACES, traffic.surface),
        "age_band": _text(names.AGE_BANDS, np.where(users.age_band_known[user], users.age_band[user], -1)),
        "income_band": _integers(np.where(users.income_band_known[user], users.income_band[user], -1)),
        "profile": _lists(pa.array(users.profile[user].ravel()), (len(user), PROFILE_DIM)),
        "interests": _interest_lists(users, user),
        "hour": pa.array(traffic.hour, pa.int8()),
        "activity": pa.array(day.activity, pa.float32()),
        "user_ctr": _floats(day.user_ctr),
        **_sequence_columns("recent_clicks", day.clicks, world, texts),
        **_sequence_columns("recent_conversions", day.conversions, world, texts),
        "labels_as_of": pa.array(np.full(len(user), day.labels_as_of), TIMESTAMP),
    }
    return pa.table(columns)


def candidates_table(day: SimulatedDay, world: World, texts: Names) -> pa.Table:
    """The `candidates/` rows of a day; conversions that may still come have no label yet."""
    rows = day.candidates
    in_time = mature(day.traffic.time[rows.request], day.labels_as_of)
    return pa.table(
        {
            **_pair_keys(day, texts),
            "stage": _text(_STAGES, rows.stage),
            "bid": pa.array(rows.bid, pa.float32()),
            "objective": _text(names.OBJECTIVES, world.ads.objective[rows.ad]),
            "user_advertiser_clicks": pa.array(rows.advertiser_clicks, pa.int32()),
            "position": pa.array(rows.position, pa.int8(), mask=rows.position == 0),
            "label_click": _labels(rows.click),
            "label_conversion": _labels(np.where(in_time, rows.conversion, np.nan)),
            "sample_weight": pa.array(rows.weight, pa.float32()),
            "explore_propensity": _floats(rows.propensity),
        }
    )


def truth_table(day: SimulatedDay, texts: Names) -> pa.Table:
    """The `truth/` rows of a day, in the order of its candidates."""
    rows = day.candidates
    probabilities = {"true_click": rows.true_click, "true_conversion": rows.true_conversion}
    return pa.table({**_pair_keys(day, texts), **{name: _floats(values) for name, values in probabilities.items()}})


def ads_table(day: SimulatedDay, world: World, texts: Names) -> pa.Table:
    """The `ads/` rows of a day."""
    ads, rows, ad = world.ads, day.ads, day.ads.ad
    price = np.where(ads.price_missing[ad], np.nan, 20.0 * np.exp(ads.log_price[ad]))
    return pa.table(
        {
            "ad_id": texts.ads.take(pa.array(ad)),
            "valid_from": pa.array(rows.valid_from, TIMESTAMP),
            "scenario": _text(names.SCENARIOS, ads.scenario[ad]),
            "status": _text(("paused", "active"), rows.active.astype(np.int64)),
            "bid": pa.array(rows.bid, pa.float32()),
            "objective": _text(names.OBJECTIVES, ads.objective[ad]),
            "advertiser_id": texts.advertisers.take(pa.array(ads.advertiser[ad])),
            "advertiser_size": _text(names.ADVERTISER_SIZES, world.advertiser_size[ads.advertiser[ad]]),
            "category": _text(names.CATEGORIES, ads.category[ad]),
            "topics": _lists(_TOPIC_NAMES.take(pa.array(ads.topics[ad].ravel())), ads.topics[ad].shape),
            "image": _lists(pa.array(ads.image[ad].ravel()), (len(ad), IMAGE_DIM), ads.image_missing[ad]),
            "creative_score": pa.array(ads.creative_score[ad], pa.float32()),
            "landing_score": pa.array(ads.landing_score[ad], pa.float32()),
            "format": _text(names.FORMATS, ads.format[ad]),
            "ad_language": _text(names.LANGUAGES, ads.language[ad]),
            "ad_age_days": pa.array(rows.age_days, pa.float32()),
            "past_impressions": pa.array(rows.impressions, pa.float32()),
            "past_ctr": _floats(rows.ctr),
            "past_cvr": _floats(rows.cvr),
            "advertiser_ctr": _floats(rows.advertiser_ctr),
            "price": _floats(price),
            "brand": texts.brands.take(_codes(ads.brand[ad])),
        }
    )


def _request_ids(day: SimulatedDay) -> pa.Array:
    """Ids that sort as the requests do in time."""
    return pa.array([f"r-{day.number:03d}-{index:06d}" for index in range(len(day.traffic.user))])


def _pair_keys(day: SimulatedDay, texts: Names) -> dict[str, pa.Array]:
    rows = day.candidates
    return {
        "request_id": _request_ids(day).take(pa.array(rows.request)),
        "ad_id": texts.ads.take(pa.array(rows.ad)),
    }


def _sequence_columns(group: str, sequences: Sequences, world: World, texts: Names) -> dict[str, pa.Array]:
    offsets = pa.array(np.concatenate([[0], np.cumsum(sequences.lengths)]), pa.int32())
    ads = world.ads
    fields = {
        "ad_id": texts.ads.take(pa.array(sequences.ads)),
        "category": _text(names.CATEGORIES, ads.category[sequences.ads]),
        "advertiser_id": texts.advertisers.take(pa.array(ads.advertiser[sequences.ads])),
        "time": pa.array(sequences.times, TIMESTAMP),
    }
    return {f"{group}.{name}": pa.ListArray.from_arrays(offsets, values) for name, values in fields.items()}


def _interest_lists(users: Users, user: np.ndarray) -> pa.Array:
    """Topics of the profile as lists, null where the profile is not known."""
    bits = (users.interests[user][:, None] >> np.arange(NUM_TOPICS, dtype=np.uint64)) & np.uint64(1)
    _, topic = np.nonzero(bits)
    offsets = np.concatenate([[0], np.cumsum(bits.sum(axis=1))]).astype(np.int32)
    unknown = pa.array(~users.interests_known[user])
    return pa.ListArray.from_arrays(pa.array(offsets), _TOPIC_NAMES.take(pa.array(topic)), mask=unknown)


def _lists(values: pa.Array, shape: tuple[int, ...], missing: np.ndarray | None = None) -> pa.Array:
    """Lists of equal length, null where `missing`."""
    offsets = pa.array(np.arange(shape[0] + 1, dtype=np.int32) * shape[1])
    return pa.ListArray.from_arrays(offsets, values, mask=None if missing is None else pa.array(missing))


def _codes(codes: np.ndarray) -> pa.Array:
    return pa.array(codes, pa.int32(), mask=codes < 0)


def _text(texts: tuple[str, ...], codes: np.ndarray) -> pa.Array:
    return pa.array(texts).take(_codes(codes))


def _integers(values: np.ndarray) -> pa.Array:
    return pa.array(values, pa.int8(), mask=values < 0)


def _labels(values: np.ndarray) -> pa.Array:
    unknown = np.isnan(values)
    return pa.array(np.where(unknown, 0, values).astype(np.int8), pa.int8(), mask=unknown)


def _floats(values: np.ndarray) -> pa.Array:
    return pa.array(values.astype(np.float32), pa.float32(), mask=np.isnan(values))
