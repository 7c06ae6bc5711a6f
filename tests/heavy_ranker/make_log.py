"""A small log for the schema of conftest.py; its clicks depend on country, tag and history, and can be learned."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START = datetime(2026, 3, 1, tzinfo=UTC)
NUM_REQUESTS, NUM_ADS, ADS_PER_REQUEST, PARTS = 600, 24, 4, 3
TIME = pa.timestamp("us", "UTC")


def write_log(directory):
    """Requests an hour apart, ads that begin with the log except ``ad-late``, candidates of all stages."""
    generator = np.random.default_rng(5)
    requests, ads = _requests(generator), _ads(generator)
    candidates, truth = _candidates(generator, requests, ads)
    _write(directory / "requests", requests, {"event_time": TIME, "clicks.time": pa.list_(TIME)}, parts=2)
    _write(directory / "ads", ads, {"valid_from": TIME}, parts=1)
    labels = {f"label_{task}": pa.float32() for task in ("click", "conversion", "deep_conversion")}
    _write(directory / "candidates", candidates, labels, parts=PARTS)
    _write(directory / "truth", truth, {}, parts=1)
    return directory


def _requests(generator):
    rows = []
    for number in range(NUM_REQUESTS):
        time = START + timedelta(hours=number)
        clicks, views = generator.integers(0, 8), generator.integers(0, 5)
        rows.append(
            {
                "request_id": f"r-{number:04d}",
                "event_time": time,
                "scenario": ("standard", "shopping")[number % 2],
                "country": ("DE", "日本", None)[generator.integers(3)],
                "user_ctr": float(generator.random()),
                "clicks.ad": [f"ad-{generator.integers(NUM_ADS)}" for _ in range(clicks)],
                "clicks.time": [time - timedelta(hours=20 - event) for event in range(clicks)],
                "views.ad": [f"ad-{generator.integers(NUM_ADS)}" for _ in range(views)],
            }
        )
    return rows


def _ads(generator):
    rows = [
        {
            "ad_id": f"ad-{number}",
            "valid_from": START - timedelta(days=1),
            "scenario": ("standard", "shopping")[number % 2],
            "tags": [f"tag {number % 4}", f"tag {generator.integers(4, 9)}"],
            "price": float(generator.lognormal()),
        }
        for number in range(NUM_ADS)
    ]
    late = START + timedelta(days=400)
    return [*rows, rows[0] | {"ad_id": "ad-late", "valid_from": late}]


def _candidates(generator, requests, ads):
    candidates, truth = [], []
    for request in requests:
        for place, number in enumerate(generator.choice(NUM_ADS, ADS_PER_REQUEST, replace=False)):
            click = _click_probability(request, ads[number])
            probabilities = np.array([click, click * 0.4, click * 0.2])
            drawn = generator.random() < click
            chain = np.cumprod([drawn, generator.random() < 0.4, generator.random() < 0.5])
            shown = place < 3
            known = [shown, shown, shown and generator.random() < 0.7]
            labels = [float(value) if is_known else None for value, is_known in zip(chain, known, strict=True)]
            keys = {"request_id": request["request_id"], "ad_id": f"ad-{number}"}
            names = ("click", "conversion", "deep_conversion")
            candidates.append(
                keys
                | {"stage": "winner" if shown else "eligible", "bid": 1.0, "seen": int(generator.integers(4))}
                | {f"label_{name}": value for name, value in zip(names, labels, strict=True)}
            )
            truth.append(keys | {f"true_{name}": p for name, p in zip(names, probabilities, strict=True)})
    candidates[-1] |= {"ad_id": "ad-late"}
    return candidates, truth


def _click_probability(request, ad):
    fits = (request["country"] == "DE") == (ad["tags"][0] in ("tag 0", "tag 1"))
    known = ad["ad_id"] in request["clicks.ad"]
    return 0.1 + 0.5 * fits + 0.3 * known


def _write(directory, rows, types, *, parts):
    directory.mkdir()
    table = pa.Table.from_pylist(rows)
    for name, type_ in types.items():
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(type_))
    size = -(-len(table) // parts)
    for part in range(parts):
        pq.write_table(table.slice(part * size, size), directory / f"part-{part}.parquet")
