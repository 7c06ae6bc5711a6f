"""A log as training and evaluation read it: each side encoded once, pairs as row numbers, all of it memory-mapped.

Shapes: R requests, A ad rows in use, N pairs, T tasks.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from contracts.artifact import is_ready, publishing, write_json
from contracts.encoding import Coverage, Encoded
from contracts.errors import InputError, LogError
from contracts.parquet import readable
from contracts.records import REQUIRED_COLUMNS, LogPaths, dataset_files, open_dataset, read_table
from contracts.schema import FeatureSchema
from contracts.timeline import AdsTimeline
from modeling.array_files import ArrayWriter, read_array, read_texts
from modeling.log_ads import AdDefaults, encode_ads
from modeling.log_pairs import PairFilter, PairReader, Pairs
from modeling.log_requests import Requests, Window, encode_requests
from modeling.no_pairs import nothing_to_read

FORMAT = 2
"""Part of the cache's key: raised when the arrays on disk change their meaning."""

_SUMMARY = "summary.json"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a cache directory says of itself beside its arrays."""

    tasks: tuple[str, ...]
    objective_names: tuple[str, ...]
    scenario_names: tuple[str, ...]
    teacher_version: str | None
    dropped: dict[str, int]
    coverage: dict[str, Coverage]


@dataclass(frozen=True)
class Examples:
    """The pairs of a log and the requests and ad rows that they share.

    Args:
        query: R encoded requests.
        ad: A encoded ad rows, each as of some request.
        pair: N encoded pair features; None where the schema has none.
        request_row: int32 [N], rows of ``query``.
        ad_row: int32 [N], rows of ``ad``.
        stage: int8 [N], furthest stage, positions in ``contracts.records.STAGES``.
        labels: float32 [N, T], NaN where unknown.
        teacher: float32 [N, T] logits of per-impression probabilities; NaN unless read with ``teacher=True``.
        weight: float32 [N].
        bid: float32 [N], the pair's, else the ad's, NaN where neither has one.
        objective: int8 [N], positions in ``summary.objective_names``: the pair's, else the ad's, else -1.
        event_time: int64 [R], microseconds UTC.
        scenario: int16 [R], positions in ``summary.scenario_names``.
        request_ids: Text [R].
        ad_ids: Text [A]; an ad comes once for each of its rows in use.
        summary: Names, teacher version, counts of what was left out, coverage a side.
        log: Where it was read from; further columns are read from there on demand.
        positions: Rows in ``requests/`` [R], ``ads/`` [A] and ``candidates/`` [N], by the names of the datasets.
        fingerprint: Of schema, log files, filters and selection: what a training run was trained on.
    """

    query: Encoded
    ad: Encoded
    pair: Encoded | None
    request_row: np.ndarray
    ad_row: np.ndarray
    stage: np.ndarray
    labels: np.ndarray
    teacher: np.ndarray
    weight: np.ndarray
    bid: np.ndarray
    objective: np.ndarray
    event_time: np.ndarray
    scenario: np.ndarray
    request_ids: pa.Array
    ad_ids: pa.Array
    summary: Summary
    log: LogPaths
    positions: dict[str, np.ndarray]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.request_row)

    @property
    def teacher_version(self) -> str | None:
        """The series of the teacher's logits."""
        return self.summary.teacher_version

    @property
    def watermark(self) -> datetime:
        """UTC time of the latest request that some pair belongs to."""
        latest = int(self.event_time[self.request_row].max())
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=latest)

    def select(self, pairs: np.ndarray) -> "Examples":
        """Some of the pairs, by position or mask, in the order given; requests and ads stay shared and numbered."""
        fields = ("request_row", "ad_row", "stage", "labels", "teacher", "weight", "bid", "objective")
        return replace(
            self,
            pair=self.pair.take(pairs) if self.pair is not None else None,
            positions=self.positions | {"candidates": self.positions["candidates"][pairs]},
            fingerprint=hashlib.sha256(self.fingerprint.encode() + np.asarray(pairs).tobytes()).hexdigest(),
            **{name: getattr(self, name)[pairs] for name in fields},
        )

    def columns(self, dataset: str, names: Sequence[str]) -> pa.Table:
        """Raw columns of the log, such as for slices: rows as in ``positions[dataset]``.

        Args:
            dataset: ``requests`` gives R rows, ``ads`` A rows, ``candidates`` N rows.
            names: Columns; those that the dataset lacks are left out.
        """
        found = open_dataset(getattr(self.log, dataset))
        present = [name for name in names if name in found.schema.names]
        with readable(getattr(self.log, dataset)):
            return found.to_table(present).take(pa.array(self.positions[dataset]))


def encode_log(
    schema: FeatureSchema,
    log: LogPaths,
    directory: Path,
    *,
    teacher: bool,
    labels: bool,
    scenario: str | tuple[str, ...] | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    stages: Collection[str] | None = None,
) -> Examples:
    """Read a log once into memory-mapped arrays; a second call with the same arguments only maps them.

    Ad features are taken from the ad's row with the latest ``valid_from`` not after the request. Pairs whose ad has no
    such row, and those that a filter leaves out, are counted in ``summary.dropped``.

    Args:
        schema: A fitted schema.
        log: Its datasets. ``outcomes/`` fills labels that ``candidates/`` leaves empty.
        directory: Of the cache; each combination of schema, files and filters has a directory of its own inside.
        teacher: Read teacher logits, and only pairs that have them for every task, all of one ``teacher_version``.
        labels: Only pairs that have a label for the first task.
        scenario: Only requests of this scenario, or of these.
        start: Only requests not before this time, which carries a zone.
        end: Only requests before this time.
        stages: Only pairs of these furthest stages.

    Raises:
        ConfigError: The schema is not fitted.
        LogError: The log breaks its contract, or no pair is left.
    """
    window = Window(scenario=scenario, start=start, end=end)
    pair_filter = PairFilter(stages=tuple(sorted(stages)) if stages else None, teacher=teacher, labels=labels)
    target = Path(directory) / _cache_key(schema, log, window, pair_filter)
    if not is_ready(target):
        try:
            with publishing(target) as aside:
                _encode(schema, log, window, pair_filter, aside)
        except InputError:
            if not is_ready(target):  # else another process was first
                raise
    return _open(target, log)


def _encode(schema: FeatureSchema, log: LogPaths, window: Window, pair_filter: PairFilter, directory: Path) -> None:
    requests = encode_requests(schema, log.requests, window, directory)
    ads = read_table(log.ads, [], required={name: REQUIRED_COLUMNS["ads"][name] for name in ("ad_id", "valid_from")})
    reader = PairReader(schema, log, requests, AdsTimeline(ads, source=log.ads), pair_filter)
    pairs = reader.write(directory)
    if not len(pairs.used_ads):
        lacking = nothing_to_read(log, window, pair_filter, requests=len(requests.rows), dropped=pairs.dropped)
        raise LogError(lacking)
    defaults = encode_ads(schema, log.ads, pairs.used_ads, directory)
    _finish_pairs(directory, pairs, defaults)
    write_json(directory / _SUMMARY, _summary(schema, requests, pairs, defaults))


def _finish_pairs(directory: Path, pairs: Pairs, defaults: AdDefaults) -> None:
    """Number the pairs' ads by rows in use, and let the ad's bid and objective stand in where the pair has none."""
    ad_row = np.searchsorted(pairs.used_ads, read_array(directory, "pair_ad_position")).astype(np.int32)
    (directory / "pair_ad_position.npy").unlink()
    bid, objective = np.array(read_array(directory, "bid")), np.array(read_array(directory, "objective"))
    with ArrayWriter(directory) as writer:
        writer.append("ad_row", ad_row)
        writer.append("bid", np.where(np.isnan(bid), defaults.bid[ad_row], bid))
        writer.append("objective", np.where(objective < 0, defaults.objective[ad_row], objective))


def _summary(schema: FeatureSchema, requests: Requests, pairs: Pairs, defaults: AdDefaults) -> Summary:
    coverage = {"query": requests.coverage, "ad": defaults.coverage, "pair": pairs.coverage}
    return Summary(
        tasks=schema.tasks,
        objective_names=schema.objective_names,
        scenario_names=requests.scenario_names,
        teacher_version=pairs.teacher_version,
        dropped=pairs.dropped,
        coverage={side: found for side, found in coverage.items() if found is not None},
    )


def _cache_key(schema: FeatureSchema, log: LogPaths, window: Window, pair_filter: PairFilter) -> str:
    """Changes with the schema's fingerprint, any log file (name, size, time of change) and the filters."""
    datasets = {name: getattr(log, name) for name in ("requests", "candidates", "ads", "outcomes")}
    files = {
        name: [(file, Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in dataset_files(path)]
        for name, path in datasets.items()
        if path is not None
    }
    content = [FORMAT, schema.fingerprint(), files, window, pair_filter]
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]


def _open(directory: Path, log: LogPaths) -> Examples:
    summary = msgspec.json.decode((directory / _SUMMARY).read_bytes(), type=Summary)
    arrays = {path.stem: read_array(directory, path.stem) for path in sorted(directory.glob("*.npy"))}
    labels = arrays["labels"]
    has_pair = "pair.ids" in arrays
    return Examples(
        query=Encoded(arrays["query.ids"], arrays["query.floats"]),
        ad=Encoded(arrays["ad.ids"], arrays["ad.floats"]),
        pair=Encoded(arrays["pair.ids"], arrays["pair.floats"]) if has_pair else None,
        request_row=arrays["request_row"],
        ad_row=arrays["ad_row"],
        stage=arrays["stage"],
        labels=labels,
        teacher=arrays.get("teacher", np.broadcast_to(np.float32(np.nan), labels.shape)),
        weight=arrays["weight"],
        bid=arrays["bid"],
        objective=arrays["objective"],
        event_time=arrays["event_time"],
        scenario=arrays["scenario"],
        request_ids=read_texts(directory, "request_id"),
        ad_ids=read_texts(directory, "ad_id"),
        summary=summary,
        log=log,
        positions={
            "requests": arrays["request_position"],
            "ads": arrays["ad_position"],
            "candidates": arrays["pair_position"],
        },
        fingerprint=directory.name,
    )
