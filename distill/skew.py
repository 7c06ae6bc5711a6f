"""Version skew: queries of one version meet pin embeddings of another, as where an index mixes versions.

The query tower of one bundle stays fixed while the pins come from other bundles, each of which encodes the log's ads by
its own schema. The pins of the query's own version are the baseline that every other one is compared with, on the same
pairs and under the same bootstrap replicates.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from contracts.bundle import Bundle, BundleManifest
from contracts.errors import WrongArtifactError
from contracts.records import LogPaths
from distill.compare import Comparison, RecallDifference, SliceDifference, Verdict, compare
from distill.data import read_scored
from distill.evaluate import Assessment, Evaluation, assess_pairs
from distill.gate_record import POOLS
from distill.recall import POOL_SIZE, TOP_K
from distill.scoring import embed_pins, embed_requests, paired
from modeling.examples import Examples
from towers.serving import TwoTowerServing

SURVIVORS = 100
METRICS = ("kl", "log_mae", "auc", "calibration")


class SkewFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of the query tower with some version's pins.

    Args:
        stage: ``winners``, ``candidates`` or ``eligible``; ``whole pools`` of recall.
        head: Task; of recall, the order of ranking.
        metric: ``kl``, ``log_mae``, ``auc`` or ``calibration``, against the teacher, or ``recall``, of the heavy top
            ten among 100 survivors.
        value: With these pins.
        paired: With the query's own.
        difference: ``value - paired``; of calibration ``|ln value| - |ln paired|``.
        low, high: 95 % paired bootstrap interval of the difference over requests; NaN where undefined.
        verdict: ``worse``, ``better`` or ``unclear``.
    """

    stage: str
    head: str
    metric: str
    value: float
    paired: float
    difference: float
    low: float
    high: float
    verdict: Verdict


class SkewVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Pins of one version.

    Args:
        version: Of the bundle that they come from.
        watermark: Latest moment of its training data, ISO 8601 UTC.
        hours: By how many this lies after the query's watermark; negative where the pins are older.
        unscorable: Why the query tower cannot be multiplied with these pins at all; empty where it can.
        figures: Empty where it cannot.
    """

    version: str
    watermark: str
    hours: float
    unscorable: str = ""
    figures: list[SkewFigure] = []

    def figure(self, stage: str, head: str, metric: str) -> SkewFigure | None:
        """One figure; None where the log could not give it."""
        wanted = (stage, head, metric)
        return next((one for one in self.figures if (one.stage, one.head, one.metric) == wanted), None)


class SkewReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``adsieve distill skew`` found.

    Args:
        query: Version whose query tower scored.
        scenario: Of all versions.
        tasks: Heads of all versions.
        log: Directory of the log.
        teacher_version: Of the scores compared with.
        first, last: Event times of the earliest and latest request, ISO 8601 UTC.
        requests, pairs: Scored.
        pools: Of the requests, those whose whole pool the teacher scored.
        versions: The query's own pins first, then the others in the order given.
    """

    query: str
    scenario: str
    tasks: tuple[str, ...]
    log: str
    teacher_version: str
    first: str
    last: str
    requests: int
    pairs: int
    pools: int
    versions: list[SkewVersion]


def measure_skew(
    query: Bundle,
    pins: Sequence[Bundle],
    log: LogPaths,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    pool_size: int = POOL_SIZE,
    threads: int = 2,
    cache: Path | None = None,
) -> SkewReport:
    """Score a log with one query tower and the pins of several versions.

    Args:
        query: Whose query tower scores; its own pins are the baseline.
        pins: Other versions of the same scenario and tasks; a version that comes twice counts once.
        log: Its datasets, with the scored copy of the candidates.
        start: Only requests not before this time.
        end: Only requests before this time.
        pool_size: Least number of scored eligible ads of a request whose recall is measured.
        threads: Threads of the graphs.
        cache: Directory that keeps the encoded log.

    Raises:
        WrongArtifactError: A bundle is of another scenario, or has other tasks.
        WrongArtifactError: By its schema a version reads other pairs of the log than the query's.
        LogError: The log breaks its contract, or has pairs without a teacher or with several.
    """
    found = {one.manifest.version: one for one in pins if one.manifest.version != query.manifest.version}
    others = list(found.values())
    for one in others:
        _check_same_job(query, one)
    with TemporaryDirectory(prefix="adsieve-") if cache is None else nullcontext(str(cache)) as directory:
        period = _Period(log, start, end, Path(directory))
        examples = period.read(query)
        serving = TwoTowerServing.load(query, threads=threads)
        queries = _Queries(query, examples, embed_requests(serving, examples), pool_size)
        own = queries.assess(query, embed_pins(serving, examples))
        versions = [_version(query, query, compare(own, own))]
        for one in others:
            reason = _unscorable(query.manifest, one.manifest)
            comparison = None if reason else compare(own, queries.assess(one, _pins(one, queries, period, threads)))
            versions.append(_version(query, one, comparison, reason))
    return _report(own.evaluation, versions)


@dataclass(frozen=True)
class _Period:
    """Part of a log, and the directory that keeps what was encoded of it."""

    log: LogPaths
    start: datetime | None
    end: datetime | None
    cache: Path

    def read(self, bundle: Bundle) -> Examples:
        """Its scored pairs, encoded by the bundle's schema."""
        scenario = str(bundle.manifest.scenario)
        return read_scored(bundle.schema, self.log, self.cache, scenario=scenario, start=self.start, end=self.end)


@dataclass(frozen=True)
class _Queries:
    """The fixed side: query embeddings [R, H, D+2] of the examples' requests."""

    query: Bundle
    examples: Examples
    embeddings: np.ndarray
    pool_size: int

    def assess(self, pins: Bundle, embeddings: np.ndarray) -> Assessment:
        """Whole stages and pools, with pin embeddings [A, H, D+2] of some version."""
        return assess_pairs(
            paired(self.query.schema, self.examples, self.embeddings, embeddings),
            self.examples,
            bundle=pins.manifest.version,
            trained_on=str(pins.manifest.teacher_version),
            cuts={},
            top_k=TOP_K,
            pool_size=self.pool_size,
        )


def _pins(other: Bundle, queries: _Queries, period: _Period, threads: int) -> np.ndarray:
    """Pin embeddings [A, H, D+2] by another version of the ads that the query's version reads.

    Raises:
        WrongArtifactError: It reads other pairs.
    """
    here, there = queries.examples, period.read(other)
    same = (
        len(here) == len(there)
        and here.ad_ids.equals(there.ad_ids)
        and all(np.array_equal(getattr(here, name), getattr(there, name)) for name in ("request_row", "ad_row"))
    )
    if not same:
        raise WrongArtifactError(
            f"{other.path}: by its schema {len(there):,} pairs of the log can be read, by that of {queries.query.path} "
            f"{len(here):,}, and not the same ones"
        )
    return embed_pins(TwoTowerServing.load(other, threads=threads), there)


def _report(own: Evaluation, versions: list[SkewVersion]) -> SkewReport:
    return SkewReport(
        query=own.bundle,
        **{name: getattr(own, name) for name in ("scenario", "tasks", "log", "teacher_version", "first", "last")},
        requests=own.requests,
        pairs=own.pairs,
        pools=0 if own.recall is None else own.recall.requests,
        versions=versions,
    )


def _check_same_job(query: Bundle, other: Bundle) -> None:
    """Only versions of one student can meet in an index."""
    for name in ("scenario", "tasks"):
        own, there = getattr(query.manifest, name), getattr(other.manifest, name)
        if own != there:
            raise WrongArtifactError(
                f"{other.path}: {name} is {there}, expected {own} as of {query.path}; versions of one student are swept"
            )


def _unscorable(query: BundleManifest, other: BundleManifest) -> str:
    """Why the dot product of both is not defined; empty where it is."""
    own, there = (manifest.dims["head_dim"] for manifest in (query, other))
    return "" if own == there else f"cannot even be scored: its head_dim is {there}, the query's {own}"


def _version(query: Bundle, pins: Bundle, comparison: Comparison | None, unscorable: str = "") -> SkewVersion:
    own, there = (datetime.fromisoformat(bundle.manifest.watermark) for bundle in (query, pins))
    return SkewVersion(
        version=pins.manifest.version,
        watermark=pins.manifest.watermark,
        hours=round((there - own).total_seconds() / 3600.0, 2),
        unscorable=unscorable,
        figures=[] if comparison is None else list(_figures(comparison)),
    )


def _figures(comparison: Comparison) -> Iterator[SkewFigure]:
    rows = sorted(
        (row for row in comparison.rows if row.against == "teacher" and row.metric in METRICS),
        key=lambda row: (-row.rows, row.head, METRICS.index(row.metric)),
    )
    for row in rows:
        yield _figure(row, row.stage, row.head)
    for recall in comparison.recall:
        if (recall.metric, recall.survivors) == ("recall", SURVIVORS):
            yield _figure(recall, POOLS, recall.order)


def _figure(row: SliceDifference | RecallDifference, stage: str, head: str) -> SkewFigure:
    return SkewFigure(
        stage=stage,
        head=head,
        metric=row.metric,
        value=row.after,
        paired=row.before,
        **{name: getattr(row, name) for name in ("difference", "low", "high", "verdict")},
    )
