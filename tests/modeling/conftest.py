"""A small log with every kind of feature, whose rows are known one by one."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.records import LogPaths
from contracts.schema import Feature, FeatureSchema, SequenceField, Table

START = datetime(2026, 3, 1, tzinfo=UTC)
NUM_REQUESTS, NUM_ADS = 60, 20
TIME = pa.timestamp("us", "UTC")


@dataclass
class SmallLog:
    """The rows as Python values, and where they were written."""

    paths: LogPaths
    requests: list[dict]
    ads: list[dict]
    candidates: list[dict]


@pytest.fixture(scope="session")
def small_schema() -> FeatureSchema:
    return FeatureSchema(
        tasks=("click", "conversion"),
        objectives={"impression": None, "click": "click", "conversion": "conversion"},
        tables={
            "ad": Table(dim=8, buckets=64),
            "country": Table(dim=4, vocabulary=("DE", "FR")),
            "topic": Table(dim=8, buckets=16),
        },
        features={
            "country": Feature(side="query", kind="categorical", table="country"),
            "activity": Feature(side="query", kind="dense", default=0.5),
            "clicks": Feature(
                side="query",
                kind="sequence",
                max_length=4,
                fields={
                    "ad_id": SequenceField(kind="categorical", table="ad"),
                    "topic": SequenceField(kind="categorical", table="topic"),
                    "time": SequenceField(kind="age", buckets=16, dim=4),
                },
            ),
            "ad_id": Feature(side="ad", kind="categorical", table="ad"),
            "topics": Feature(side="ad", kind="multi_categorical", table="topic", max_length=3),
            "quality": Feature(side="ad", kind="dense", default=0.0),
            "image": Feature(side="ad", kind="embedding", length=3),
            "seen": Feature(side="pair", kind="dense", transform="log1p", default=0.0),
        },
    )


@pytest.fixture(scope="session")
def small_log(tmp_path_factory: pytest.TempPathFactory) -> SmallLog:
    directory = tmp_path_factory.mktemp("small_log")
    generator = np.random.default_rng(7)
    requests, ads = _requests(generator), _ads(generator)
    candidates = _candidates(generator, requests)
    _write(directory / "requests", requests, {"event_time": TIME, "clicks.time": pa.list_(TIME)}, parts=2)
    _write(directory / "ads", ads, {"valid_from": TIME, "image": pa.list_(pa.float32())}, parts=1)
    _write(directory / "candidates", candidates, {"bid": pa.float32(), "label_conversion": pa.float32()}, parts=3)
    return SmallLog(LogPaths.under(directory), requests, ads, candidates)


def _requests(generator: np.random.Generator) -> list[dict]:
    rows = []
    for number in range(NUM_REQUESTS):
        time = START + timedelta(hours=number)
        length = int(generator.integers(0, 7))
        rows.append(
            {
                "request_id": f"r-{number}",
                "event_time": time,
                "scenario": ("standard", "shopping")[number % 2],
                "country": [None, "DE", "FR", "日本"][number % 4],
                "activity": float(generator.random()) if number % 5 else None,
                "clicks.ad_id": [f"ad-{generator.integers(NUM_ADS)}" for _ in range(length)],
                "clicks.topic": [f"topic {generator.integers(5)}" for _ in range(length)],
                "clicks.time": [time - timedelta(hours=float(9 - event)) for event in range(length)],
            }
        )
    return rows


def _ads(generator: np.random.Generator) -> list[dict]:
    """Two rows an ad, the second from the middle of the log on; ad-0 begins only then."""
    rows = []
    for moment in (START - timedelta(days=1), START + timedelta(hours=NUM_REQUESTS // 2)):
        for number in range(NUM_ADS):
            if number == 0 and moment < START:
                continue
            topics = [f"topic {generator.integers(5)}" for _ in range(int(generator.integers(0, 4)))]
            rows.append(
                {
                    "ad_id": f"ad-{number}",
                    "valid_from": moment,
                    "scenario": "standard",
                    "bid": float(number) if number % 3 else None,
                    "objective": "click" if number % 2 else None,
                    "topics": topics,
                    "quality": float(generator.normal()),
                    "image": generator.normal(size=3).tolist(),
                }
            )
    return rows


def _candidates(generator: np.random.Generator, requests: list[dict]) -> list[dict]:
    rows = []
    for request in requests:
        for ad in generator.choice(NUM_ADS, 5, replace=False):
            stage = ("eligible", "candidate", "winner")[int(generator.integers(3))]
            click = float(generator.random() < 0.4) if stage == "winner" else None
            scored = bool(generator.random() < 0.8)
            rows.append(
                {
                    "request_id": request["request_id"],
                    "ad_id": f"ad-{ad}",
                    "stage": stage,
                    "bid": float(generator.random()) if generator.random() < 0.5 else None,
                    "objective": "conversion" if generator.random() < 0.5 else None,
                    "seen": int(generator.integers(5)),
                    "label_click": click,
                    "label_conversion": float(generator.random() < 0.3) if click else click,
                    "sample_weight": 2.0 if generator.random() < 0.1 else None,
                    "teacher_click": float(generator.normal()) if scored else None,
                    "teacher_conversion": float(generator.normal()) if scored else None,
                    "teacher_version": "series-1" if scored else None,
                }
            )
    return rows


def _write(directory: Path, rows: list[dict], types: dict[str, pa.DataType], *, parts: int) -> None:
    directory.mkdir()
    table = pa.Table.from_pylist(rows)
    for name, type_ in types.items():
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(type_))
    size = -(-len(table) // parts)
    for part in range(parts):
        pq.write_table(table.slice(part * size, size), directory / f"part-{part}.parquet")
