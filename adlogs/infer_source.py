"""What a schema is inferred from: a log in its three datasets, or one flat table whose columns are divided by side.

Letters: B candidates of the sample.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_names import AD_WORDS, LABEL_WORDS, REQUEST_WORDS, USER_WORDS, best_named, plain
from adlogs.evidence import codes_of, constancy
from adlogs.infer_sample import ParquetSample, Sample, TableSample, flat_sample
from contracts.columns import instants, numbers
from contracts.errors import LogError
from contracts.records import STAGES, LogPaths, plain_text
from contracts.schema import Side
from contracts.timeline import AdsTimeline

LABEL = "label_"
_SEPARATOR = "\x1f"


@dataclass(frozen=True, kw_only=True)
class InferSource:
    """Samples of each side, and what of the pairs is known.

    Args:
        samples: By side.
        rows: By side, the row of the sample that each candidate belongs to, -1 where the sample lacks it; int64 [B].
        outcomes: By task, 1, 0 or NaN; float64 [B].
        shown: Whether each candidate was shown, bool [B].
        evidence: Of a flat table: why a column is of its side.
        described: What was looked at, a line each.
        ads: Ids of the ads of the sample.
    """

    samples: Mapping[Side, Sample]
    rows: Mapping[Side, np.ndarray]
    outcomes: Mapping[str, np.ndarray]
    shown: np.ndarray
    evidence: Mapping[str, str] = field(default_factory=dict)
    described: tuple[str, ...] = ()


def read_source(path: Path, rows: int, *, request: str | None = None, ad: str | None = None) -> InferSource:
    """Sample a log directory, or a flat Parquet or CSV table.

    Args:
        path: Directory with requests/, candidates/ and ads/; else a file or a directory of one table.
        rows: To take of each dataset.
        request: Of a flat table, the column of requests; guessed by name unless given.
        ad: Of a flat table, the column of ads; as above.

    Raises:
        LogError: Nothing is there, or a flat table has no column of ads.
    """
    if not path.exists():
        raise LogError(f"{path}: no such file or directory, expected a log, or a table in Parquet or CSV")
    if (path / "candidates").is_dir():
        return _of_log(LogPaths.under(path), rows)
    return _of_table(path, flat_sample(path, rows), request, ad)


def _of_log(log: LogPaths, rows: int) -> InferSource:
    samples: dict[Side, Sample] = {
        "query": ParquetSample(log.requests, rows),
        "ad": ParquetSample(log.ads, rows),
        "pair": ParquetSample(log.candidates, rows),
    }
    for side, names in (("query", ("request_id", "event_time")), ("ad", ("ad_id", "valid_from")), ("pair", ("ad_id",))):
        for name in names:
            if name not in samples[side].names:  # type: ignore[index]
                raise LogError(f"{getattr(log, _DATASETS[side])}: has no column {name}, expected one")
    request_ids = plain_text(samples["pair"].column("request_id"))
    ad_ids = plain_text(samples["pair"].column("ad_id"))
    query = _index(request_ids, plain_text(samples["query"].column("request_id")))
    times = instants(samples["query"].column("event_time"))
    moment = np.where(query >= 0, times[np.maximum(query, 0)], np.iinfo(np.int64).min)
    catalogue = pa.table({name: samples["ad"].column(name) for name in ("ad_id", "valid_from")})
    ad = AdsTimeline(catalogue, source=log.ads).rows_at(ad_ids, moment).astype(np.int64)
    stage = plain_text(samples["pair"].column("stage")) if "stage" in samples["pair"].names else None
    shown = np.ones(len(ad), bool) if stage is None else np.asarray(pc.equal(stage, STAGES[-1]).fill_null(False))
    outcomes = _labels(samples["pair"]) or _joined_labels(log, rows, request_ids, ad_ids)
    described = tuple(
        f"{_DATASETS[side]}: {sample.num_rows:,} of {sample.num_all:,} rows" for side, sample in samples.items()
    )
    return InferSource(
        samples=samples,
        rows={"query": query, "ad": ad, "pair": np.arange(len(ad))},
        outcomes=outcomes,
        shown=shown,
        described=described,
    )


_DATASETS: dict[str, str] = {"query": "requests", "ad": "ads", "pair": "candidates"}


def _index(values: pa.Array, among: pa.Array) -> np.ndarray:
    return pc.index_in(values, value_set=among).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def _labels(sample: Sample) -> dict[str, np.ndarray]:
    found = {}
    for name in sample.names:
        if name.startswith(LABEL) and name != LABEL:
            array = sample.column(name)
            values = numbers(array)
            found[name.removeprefix(LABEL)] = np.where(np.asarray(array.is_null()), np.nan, values)
    return found


def _joined_labels(log: LogPaths, rows: int, request_ids: pa.Array, ad_ids: pa.Array) -> dict[str, np.ndarray]:
    """Outcomes that stand in a dataset of their own."""
    if log.outcomes is None:
        return {}
    sample = ParquetSample(log.outcomes, rows)
    keys = [plain_text(sample.column(name)) for name in ("request_id", "ad_id")]
    places = _index(
        pc.binary_join_element_wise(request_ids, ad_ids, _SEPARATOR), pc.binary_join_element_wise(*keys, _SEPARATOR)
    )
    return {
        task: np.where(places >= 0, values[np.maximum(places, 0)], np.nan) for task, values in _labels(sample).items()
    }


def _of_table(path: Path, table: TableSample, request: str | None, ad: str | None) -> InferSource:
    """Divide a flat table: what is constant within requests or ads is theirs, the rest is of pairs."""
    ad = _named(path, table, "ad", ad, AD_WORDS)
    if ad is None:
        raise LogError(f"{path}: no column looks like the id of an ad: name it with --ad-id; found {table.names}")
    request = _named(path, table, "request", request, REQUEST_WORDS)
    count = table.num_rows
    ad_codes = codes_of(table.column(ad))
    request_codes = codes_of(table.column(request)) if request else np.arange(count)
    labels = [name for name in table.names if _is_label(name, table)]
    sides: dict[Side, list[str]] = {"query": [], "ad": [ad], "pair": []}
    evidence = {}
    for name in table.names:
        if name in labels or name in (ad, request):
            continue
        side, evidence[name] = _side(codes_of(table.column(name)), request_codes, ad_codes, name)
        sides[side].append(name)
    first_request, first_ad = _firsts(request_codes), _firsts(ad_codes)
    samples: dict[Side, Sample] = {
        "query": table.take(first_request, sides["query"] or [ad]) if sides["query"] else TableSample(pa.table({})),
        "ad": _renamed(table.take(first_ad, sides["ad"]), ad, "ad_id"),
        "pair": table.take(np.arange(count), sides["pair"]) if sides["pair"] else TableSample(pa.table({})),
    }
    return InferSource(
        samples=samples,
        rows={
            "query": _places(request_codes, first_request),
            "ad": _places(ad_codes, first_ad),
            "pair": np.arange(count),
        },
        outcomes={plain(name).removeprefix(LABEL): _as_outcome(table.column(name)) for name in labels},
        shown=np.ones(count, bool),
        evidence=evidence,
        described=(f"{count:,} rows of {path}; ads by {ad}, requests by {request or 'row'}",),
    )


def _named(path: Path, table: TableSample, what: str, given: str | None, words: "re.Pattern[str]") -> str | None:
    if given is not None and given not in table.names:
        raise LogError(f"{path}: no column {given!r}, expected the {what}'s id; found {table.names}")
    exact = f"{what}_id"
    if given is None and exact in table.names:
        return exact
    return given or best_named(list(table.names), words)


def _is_label(name: str, table: TableSample) -> bool:
    if name.startswith(LABEL):
        return True
    type_ = table.table.schema.field(name).type
    if not LABEL_WORDS.search(plain(name)) or not (pa.types.is_integer(type_) or pa.types.is_boolean(type_)):
        return False
    values = numbers(table.column(name))
    return bool(np.isin(values[~np.isnan(values)], (0, 1)).all())


def _side(values: np.ndarray, requests: np.ndarray, ads: np.ndarray, name: str) -> tuple[Side, str]:
    by_request, by_ad = constancy(values, requests), constancy(values, ads)
    if by_request.holds and not by_ad.holds:
        return "query", f"one value in each of {by_request.groups:,} requests"
    if by_ad.holds:
        return "ad", f"one value in each of {by_ad.groups:,} ads"
    if by_request.groups < 20:
        sure = " by its name" if USER_WORDS.search(plain(name)) else ": requests have one row each, so this is a guess"
        return "query", f"of the request{sure}"
    return "pair", f"differs within requests ({by_request.share:.0%} have one value) and ads ({by_ad.share:.0%})"


def _firsts(codes: np.ndarray) -> np.ndarray:
    return np.sort(np.unique(codes, return_index=True)[1])


def _places(codes: np.ndarray, first: np.ndarray) -> np.ndarray:
    place = np.full(codes.max(initial=0) + 2, -1)
    place[codes[first]] = np.arange(len(first))
    return place[codes]


def _renamed(sample: TableSample, name: str, new: str) -> TableSample:
    return TableSample(sample.table.rename_columns([new if old == name else old for old in sample.names]))


def _as_outcome(array: pa.Array) -> np.ndarray:
    return np.where(np.asarray(array.is_null()), np.nan, numbers(array))
