"""Judges a sealed two-tower bundle against the teacher, with the graphs and look-ups that would serve."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from contracts.bundle import Bundle
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from distill.compare import Comparison, compare
from distill.data import read_scored
from distill.measures import Measured, Reliability, SliceMetrics, measure_slices
from distill.pool_facts import historical_rates, truth_of
from distill.recall import (
    POOL_SIZE,
    TOP_K,
    PoolCurves,
    RecallReport,
    fitting_pool_size,
    measure_recall,
    pool_rows,
)
from distill.scoring import ScoredPairs, score_pairs
from distill.slice_defaults import require_columns, slice_columns, teacher_seen_until
from distill.slices import ALL, SliceColumn
from modeling.examples import Examples
from modeling.log_requests import utc_microseconds
from towers.serving import TwoTowerServing


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says.

    Args:
        bundle: Version of the student.
        log: Directory of the log.
        scenario: That it serves.
        teacher_version: Of the scores compared with.
        trained_on: Teacher version that the student was distilled from.
        first, last: Event times of the earliest and latest request, ISO 8601 UTC.
        requests: With at least one pair.
        pairs: Evaluated.
        tasks: Heads.
        slices: Metrics of each head on each slice.
        reliability: Predicted beside observed rates.
        recall: None where no request has a whole teacher-scored pool.
        largest_pool: Most teacher-scored eligible ads of one request.
    """

    bundle: str
    log: str
    scenario: str
    teacher_version: str
    trained_on: str
    first: str
    last: str
    requests: int
    pairs: int
    tasks: tuple[str, ...]
    slices: list[SliceMetrics]
    reliability: list[Reliability]
    recall: RecallReport | None
    largest_pool: int = 0

    def metrics(
        self, stage: str, head: str, *, model: str = "student", against: str = "teacher"
    ) -> SliceMetrics | None:
        """The metrics of a whole stage; None where it has no such rows."""
        wanted = (stage, ALL, head, model, against)
        found = (row for row in self.slices if (row.stage, row.slice, row.head, row.model, row.against) == wanted)
        return next(found, None)


@dataclass(frozen=True)
class Assessment:
    """An evaluation with the bootstrap replicates that comparisons are made of.

    Args:
        evaluation: As it is reported.
        measured: Every row of its slices, with replicates.
        pools: Its recall pool by pool; None where no request has a whole pool.
    """

    evaluation: Evaluation
    measured: list[Measured]
    pools: PoolCurves | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What ``adsieve distill evaluate`` found.

    Args:
        evaluations: One for each log and bundle, in the order given.
        comparisons: Of each later bundle with the first one of its scenario, for each log.
    """

    evaluations: list[Evaluation]
    comparisons: list[Comparison]


def evaluate_bundles(
    bundles: Sequence[Bundle],
    logs: Sequence[LogPaths],
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    columns: Sequence[str] = (),
    top_k: int = TOP_K,
    pool_size: int | None = POOL_SIZE,
    threads: int = 2,
    cache: Path | None = None,
) -> Report:
    """Evaluate every bundle on every log, and compare later bundles with the first one of their scenario.

    Args:
        bundles: As for :func:`assess_bundle`; so are the other arguments.
        logs: Each with the scored copy of its candidates.

    Raises:
        InputError: A column cannot cut slices.
        LogError: A log breaks its contract, or has pairs without a teacher or with several.
    """
    if columns:
        for log in logs:
            require_columns(log, columns)
    evaluations, comparisons = [], []
    with TemporaryDirectory(prefix="adsieve-") if cache is None else nullcontext(str(cache)) as directory:
        for log in logs:
            firsts: dict[str, Assessment] = {}
            for bundle in bundles:
                found = assess_bundle(
                    bundle,
                    log,
                    start=start,
                    end=end,
                    columns=columns,
                    top_k=top_k,
                    pool_size=pool_size,
                    threads=threads,
                    cache=Path(directory),
                )
                evaluations.append(found.evaluation)
                first = firsts.setdefault(found.evaluation.scenario, found)
                if first is not found:
                    comparisons.append(compare(first, found))
    return Report(evaluations=evaluations, comparisons=comparisons)


def assess_bundle(
    bundle: Bundle,
    log: LogPaths,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    columns: Sequence[str] = (),
    top_k: int = TOP_K,
    pool_size: int | None = POOL_SIZE,
    threads: int = 2,
    cache: Path,
) -> Assessment:
    """Compare a bundle's student with the teacher on the requests of its scenario.

    Args:
        bundle: Verified, of kind ``two_tower``.
        log: Its datasets, with the scored copy of the candidates.
        start: Only requests not before this time.
        end: Only requests before this time.
        columns: Further columns of the log to cut slices by.
        top_k: Heavy ads that should survive.
        pool_size: Least number of eligible ads with teacher scores of a request whose recall is measured; None is what
            :func:`distill.recall.fitting_pool_size` finds.
        threads: Threads of the graphs.
        cache: Directory that keeps the encoded log.

    Raises:
        InputError: A column cannot cut slices.
        LogError: The log breaks its contract, or has pairs without a teacher or with several.
    """
    serving = TwoTowerServing.load(bundle, threads=threads)
    examples = read_scored(bundle.schema, log, cache, scenario=str(bundle.manifest.scenario), start=start, end=end)
    return assess_examples(
        bundle.schema,
        serving,
        examples,
        bundle=bundle.manifest.version,
        trained_on=str(bundle.manifest.teacher_version),
        trained_until=bundle.manifest.watermark,
        columns=columns,
        top_k=top_k,
        pool_size=pool_size,
    )


def assess_examples(
    schema: FeatureSchema,
    serving: TwoTowerServing,
    examples: Examples,
    *,
    bundle: str,
    trained_on: str,
    trained_until: str | None = None,
    columns: Sequence[str] = (),
    top_k: int = TOP_K,
    pool_size: int | None = POOL_SIZE,
) -> Assessment:
    """The same for pairs that are already encoded.

    Args:
        bundle: Names the student in the result.
        trained_on: Teacher version that it was distilled from.
        trained_until: Time of the latest request that the student has trained on, ISO 8601; None leaves it open.
    """
    pairs = score_pairs(schema, serving, examples)
    cuts = slice_columns(
        examples,
        columns,
        teacher_seen_until=teacher_seen_until(examples.log.candidates),
        student_seen_until=None if trained_until is None else utc_microseconds(datetime.fromisoformat(trained_until)),
    )
    return assess_pairs(
        pairs, examples, bundle=bundle, trained_on=trained_on, cuts=cuts, top_k=top_k, pool_size=pool_size
    )


def assess_pairs(
    pairs: ScoredPairs,
    examples: Examples,
    *,
    bundle: str,
    trained_on: str,
    cuts: Mapping[str, SliceColumn],
    top_k: int = TOP_K,
    pool_size: int | None = POOL_SIZE,
) -> Assessment:
    """The same for pairs that are already scored.

    Args:
        pairs: Of the examples, in their order.
        bundle, trained_on: As in :func:`assess_examples`.
        cuts: Columns to cut slices by, by name; whole stages are measured in any case.
    """
    measured = measure_slices(pairs, cuts)
    pools = _measure_pools(examples, pairs, top_k=top_k, pool_size=pool_size)
    used = np.unique(examples.request_row)
    times = np.asarray(examples.event_time)[used]
    evaluation = Evaluation(
        bundle=bundle,
        log=str(Path(examples.log.requests).parent),
        scenario=", ".join(examples.summary.scenario_names),
        teacher_version=str(examples.teacher_version),
        trained_on=trained_on,
        first=_iso(times.min()),
        last=_iso(times.max()),
        requests=len(used),
        pairs=len(pairs),
        tasks=pairs.tasks,
        slices=[one.metrics for one in measured],
        reliability=[one.reliability for one in measured if one.reliability is not None],
        recall=None if pools is None else pools.report,
        largest_pool=int(np.bincount(pairs.request).max()),
    )
    return Assessment(evaluation, measured, pools)


def _measure_pools(examples: Examples, pairs: ScoredPairs, *, top_k: int, pool_size: int | None) -> PoolCurves | None:
    pool_size = fitting_pool_size(pairs.request) if pool_size is None else pool_size
    rows = pool_rows(pairs.request, pool_size)
    if not len(rows):
        return None
    rates, truth = historical_rates(examples, rows), truth_of(examples, rows)
    return measure_recall(pairs, rates=rates, truth=truth, top_k=top_k, pool_size=pool_size)


def _iso(micros: np.int64) -> str:
    """ISO 8601 text of microseconds since 1970, UTC, to the second."""
    return str(np.datetime_as_string(np.datetime64(int(micros), "us"), unit="s", timezone="UTC"))
