"""Judges a sealed two-tower bundle against the teacher, with the graphs and look-ups that would serve."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from contracts.bundle import Bundle
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from distill.compare import Comparison
from distill.data import read_scored
from distill.measures import Reliability, SliceMetrics, measure_slices, reliability
from distill.recall import POOL_SIZE, TOP_K, RecallReport, measure_recall
from distill.scoring import score_pairs
from distill.slices import ALL, slice_columns
from modeling.examples import Examples
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

    def metrics(
        self, stage: str, head: str, *, model: str = "student", against: str = "teacher"
    ) -> SliceMetrics | None:
        """The metrics of a whole stage; None where it has no such rows."""
        wanted = (stage, ALL, head, model, against)
        found = (row for row in self.slices if (row.stage, row.slice, row.head, row.model, row.against) == wanted)
        return next(found, None)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What ``adsieve distill evaluate`` found.

    Args:
        evaluations: One for each log and bundle, in the order given.
        comparisons: Of each later bundle with the first one of its scenario, for each log.
    """

    evaluations: list[Evaluation]
    comparisons: list[Comparison]


def evaluate_bundle(
    bundle: Bundle,
    log: LogPaths,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    columns: Sequence[str] = (),
    top_k: int = TOP_K,
    pool_size: int = POOL_SIZE,
    threads: int = 2,
    cache: Path | None = None,
) -> Evaluation:
    """Compare a bundle's student with the teacher on the requests of its scenario.

    Args:
        bundle: Verified, of kind ``two_tower``.
        log: Its datasets, with the scored copy of the candidates.
        start: Only requests not before this time.
        end: Only requests before this time.
        columns: Further columns of the log to cut slices by.
        top_k: Heavy ads that should survive.
        pool_size: Least number of eligible ads with teacher scores of a request whose recall is measured.
        threads: Threads of the graphs.
        cache: Directory that keeps the encoded log; a temporary one otherwise.

    Raises:
        InputError: A column cannot cut slices.
        LogError: The log breaks its contract, or has pairs without a teacher or with several.
    """
    scenario = str(bundle.manifest.scenario)
    serving = TwoTowerServing.load(bundle, threads=threads)
    with TemporaryDirectory(prefix="adsieve-") as temporary:
        directory = cache or Path(temporary)
        examples = read_scored(bundle.schema, log, directory, scenario=scenario, start=start, end=end)
        return evaluate_examples(
            bundle.schema,
            serving,
            examples,
            bundle=bundle.manifest.version,
            trained_on=str(bundle.manifest.teacher_version),
            columns=columns,
            top_k=top_k,
            pool_size=pool_size,
        )


def evaluate_examples(
    schema: FeatureSchema,
    serving: TwoTowerServing,
    examples: Examples,
    *,
    bundle: str,
    trained_on: str,
    columns: Sequence[str] = (),
    top_k: int = TOP_K,
    pool_size: int = POOL_SIZE,
) -> Evaluation:
    """The same for pairs that are already encoded; ``bundle`` names the student in the result."""
    pairs = score_pairs(schema, serving, examples)
    used = np.unique(examples.request_row)
    times = np.asarray(examples.event_time)[used]
    return Evaluation(
        bundle=bundle,
        log=str(Path(examples.log.requests).parent),
        scenario=", ".join(examples.summary.scenario_names),
        teacher_version=str(examples.teacher_version),
        trained_on=trained_on,
        first=_iso(times.min()),
        last=_iso(times.max()),
        requests=len(used),
        pairs=len(pairs),
        tasks=schema.tasks,
        slices=measure_slices(pairs, slice_columns(examples, columns)),
        reliability=reliability(pairs),
        recall=measure_recall(pairs, top_k=top_k, pool_size=pool_size),
    )


def _iso(micros: np.int64) -> str:
    """ISO 8601 text of microseconds since 1970, UTC, to the second."""
    return str(np.datetime_as_string(np.datetime64(int(micros), "us"), unit="s", timezone="UTC"))
