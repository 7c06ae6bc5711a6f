"""What a log knows of the ads of whole pools beside the models: their rates so far and, where simulated, the truth.

Shapes: N pairs, n pairs asked for, H heads, S shown pairs with a known label.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from contracts.parquet import readable
from contracts.records import open_dataset, plain_text, utc_micros
from modeling.examples import Examples

_MICROS_PER_DAY = 86_400_000_000


def historical_rates(examples: Examples, rows: np.ndarray) -> np.ndarray:
    """How often each ad had each outcome when it was shown before, float64 [n, H]: a ranking without a model.

    ``(events + 1) / (shown + 1 / p)`` over the ad's pairs in the log, of any scenario, that were shown before the day
    (UTC) of the request and have a known label: as if each ad had had one more event at the mean rate p, of all pairs
    shown before the last of these days. Labels that matured later count too, which favours this ranking. Where the log
    has no events before, all ads have the same rate.

    Args:
        examples: Evaluated pairs; the history comes from their whole log, before their first request too.
        rows: int [n], positions of pairs.
    """
    tasks = examples.summary.tasks
    request_day = (np.asarray(examples.event_time) // _MICROS_PER_DAY)[examples.request_row[rows]]
    ad_ids = examples.ad_ids.take(pa.array(examples.ad_row[rows]))
    known_ads = pc.unique(ad_ids)
    ad = np.asarray(pc.index_in(ad_ids, known_ads)).astype(np.int64)
    return np.column_stack([_rates(examples, task, ad, request_day, known_ads) for task in tasks])


def truth_of(examples: Examples, rows: np.ndarray) -> np.ndarray | None:
    """True probabilities of pairs, float64 [n, H], NaN where the truth lacks a pair; None where a log has none."""
    tasks, path = examples.summary.tasks, examples.log.truth
    names = [f"true_{task}" for task in tasks]
    if path is None or not set(names) <= set(open_dataset(path).schema.names):
        return None
    request_ids = examples.request_ids.take(pa.array(examples.request_row[rows]))
    ad_ids = examples.ad_ids.take(pa.array(examples.ad_row[rows]))
    known_requests, known_ads = pc.unique(request_ids), pc.unique(ad_ids)
    with readable(path):
        wanted = ds.field("request_id").isin(known_requests)
        table = open_dataset(path).to_table(["request_id", "ad_id", *names], filter=wanted)
    keys = _keys(table["request_id"], table["ad_id"], known_requests, known_ads)
    order = np.argsort(keys)
    asked = _keys(request_ids, ad_ids, known_requests, known_ads)
    place = np.minimum(np.searchsorted(keys[order], asked), max(len(keys) - 1, 0))
    found = np.full((len(rows), len(tasks)), np.nan)
    if len(keys):
        hit = keys[order][place] == asked
        values = np.column_stack([np.asarray(table[name].cast(pa.float64()).fill_null(np.nan)) for name in names])
        found[hit] = values[order[place[hit]]]
    return found


def _rates(
    examples: Examples, task: str, ad: np.ndarray, request_day: np.ndarray, known_ads: pa.StringArray
) -> np.ndarray:
    """The rates [n] of one task."""
    shown_ad, day, label = _shown(examples, task, known_ads)
    before = day < request_day.max()
    if not before.any() or not label[before].sum() > 0:
        return np.ones(len(ad))
    mean = label[before].mean()
    own = shown_ad >= 0
    shown_ad, day, label = shown_ad[own], day[own], label[own]
    first_day, days = day.min(initial=request_day.min()), int(request_day.max()) + 1
    key = shown_ad * (days - first_day + 1) + np.minimum(day, days) - first_day
    order = np.argsort(key, kind="stable")
    running = np.r_[0.0, np.cumsum(label[order])]
    start, end = (
        np.searchsorted(key[order], ad * (days - first_day + 1) + offset) for offset in (0, request_day - first_day)
    )
    return (running[end] - running[start] + 1.0) / (end - start + 1.0 / mean)


def _shown(examples: Examples, task: str, known_ads: pa.StringArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ad (position in ``known_ads``, else -1), day of the request and label of all S shown pairs with a label."""
    log, column = examples.log, f"label_{task}"
    source = log.outcomes if log.outcomes and column in open_dataset(log.outcomes).schema.names else log.candidates
    nothing = np.zeros(0, np.int64)
    dataset = open_dataset(source)
    if column not in dataset.schema.names:
        return nothing, nothing, np.zeros(0)
    with readable(source):
        table = dataset.to_table(["request_id", "ad_id", column], filter=ds.field(column).is_valid())
    requests = open_dataset(log.requests).to_table(["request_id", "event_time"])
    place = pc.index_in(plain_text(table["request_id"]), plain_text(requests["request_id"]).combine_chunks())
    table, place = table.filter(place.is_valid()), np.asarray(place.drop_null())
    times = utc_micros(requests["event_time"], column="event_time", source=log.requests)
    ad = np.asarray(pc.index_in(plain_text(table["ad_id"]), known_ads).fill_null(-1)).astype(np.int64)
    return ad, times[place] // _MICROS_PER_DAY, np.asarray(table[column].cast(pa.float64()))


def _keys(
    request_ids: pa.Array | pa.ChunkedArray,
    ad_ids: pa.Array | pa.ChunkedArray,
    known_requests: pa.StringArray,
    known_ads: pa.StringArray,
) -> np.ndarray:
    """int64 [n], one number a pair; -1 for a pair of which an id is not known."""
    request, ad = (
        np.asarray(pc.index_in(plain_text(ids), known).fill_null(-1)).astype(np.int64)
        for ids, known in ((request_ids, known_requests), (ad_ids, known_ads))
    )
    return np.where((request < 0) | (ad < 0), -1, request * len(known_ads) + ad)
