"""A small scored log: two scenarios, three days, daily ad rows, and a teacher that a two-tower can learn."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START = datetime(2026, 3, 1, tzinfo=UTC)
SCENARIOS = ("standard", "shopping")
COUNTRIES = ("DE", "日本", None)
CATEGORIES = ("shoes", "Bücher", "games", "food")
OBJECTIVES = ("click", "conversion", "impression")
NUM_DAYS, NUM_ADS, REQUESTS_A_DAY, ADS_A_REQUEST, WHOLE_POOLS, POOL = 3, 70, 40, 12, 3, 60
TEACHER = "heavy-all-0123456789ab"
TIME = pa.timestamp("us", "UTC")


def write_log(directory: Path) -> Path:
    """Datasets below ``directory``; ``candidates/`` is scored."""
    generator = np.random.default_rng(11)
    requests, candidates = [], []
    for day in range(NUM_DAYS):
        for number in range(REQUESTS_A_DAY * len(SCENARIOS)):
            request = _request(generator, day, number)
            whole = day == NUM_DAYS - 1 and number < WHOLE_POOLS * len(SCENARIOS)
            requests.append(request)
            candidates += _candidates(generator, request, POOL if whole else ADS_A_REQUEST)
    kinds = {"event_time": TIME, "clicks.time": pa.list_(TIME), "clicks.ad_id": pa.list_(pa.string())}
    write(directory / "requests", requests, kinds, parts=2)
    write(directory / "ads", _ads(), {"valid_from": TIME}, parts=1)
    write(directory / "candidates", candidates, {}, parts=3)
    return directory


def write(directory: Path, rows: list[dict], kinds: dict[str, pa.DataType], *, parts: int) -> None:
    directory.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    for name, kind in kinds.items():
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(kind))
    bounds = np.linspace(0, len(table), parts + 1).astype(int)
    for part, (first, last) in enumerate(pairwise(bounds)):
        pq.write_table(table.slice(first, last - first), directory / f"part-{part}.parquet")


def _request(generator: np.random.Generator, day: int, number: int) -> dict:
    time = START + timedelta(days=day, minutes=10 * number, microseconds=123)
    events = int(generator.integers(0, 6))
    return {
        "request_id": f"r-{day}-{number:03d}",
        "event_time": time,
        "scenario": SCENARIOS[number % 2],
        "country": COUNTRIES[generator.integers(3)],
        "activity": float(generator.random()),
        "clicks.ad_id": [_ad_id(number % 2, int(generator.integers(NUM_ADS))) for _ in range(events)],
        "clicks.time": [time - timedelta(hours=9 - event) for event in range(events)],
    }


def _ads() -> list[dict]:
    return [
        {
            "ad_id": _ad_id(scenario, number),
            "valid_from": START + timedelta(days=day),
            "scenario": SCENARIOS[scenario],
            "category": CATEGORIES[number % 4],
            "price": _price(number),
            "objective": OBJECTIVES[number % 3],
            "bid": 1.0 + number % 5,
        }
        for day in range(NUM_DAYS)
        for scenario in range(2)
        for number in range(NUM_ADS)
    ]


def _candidates(generator: np.random.Generator, request: dict, count: int) -> list[dict]:
    scenario = SCENARIOS.index(request["scenario"])
    rows = []
    for place, number in enumerate(generator.choice(NUM_ADS, count, replace=False).tolist()):
        click = _click_logit(request, number)
        conversion = np.log(1 / ((1 + np.exp(-click)) * 3 - 1))  # a third of the clicks
        shown = place < 4
        clicked = shown and generator.random() < 1 / (1 + np.exp(-click))
        rows.append(
            {
                "request_id": request["request_id"],
                "ad_id": _ad_id(scenario, number),
                "stage": "winner" if shown else "candidate" if place < 8 else "eligible",
                "bid": float(generator.lognormal()),
                "objective": OBJECTIVES[number % 3],
                "label_click": float(clicked) if shown else None,
                "label_conversion": float(clicked and generator.random() < 1 / 3) if shown else None,
                "sample_weight": 1.0 if shown else 2.0,
                "explore_propensity": 0.05 if place == 3 else None,
                "teacher_click": float(np.float32(click)),
                "teacher_conversion": float(np.float32(conversion)),
                "teacher_version": TEACHER,
            }
        )
    return rows


def _click_logit(request: dict, number: int) -> float:
    taste = (number % 4 == COUNTRIES.index(request["country"])) * 2.0
    return -2.5 + taste + 0.8 * request["activity"] - 0.6 * np.log1p(_price(number)) + 0.3 * (number % 7 == 0)


def _price(number: int) -> float:
    return float((number * 37 % 23) / 5)


def _ad_id(scenario: int, number: int) -> str:
    return f"{SCENARIOS[scenario]}-ä{number}"
