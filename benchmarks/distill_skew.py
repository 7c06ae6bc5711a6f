"""Version skew on the demo's log: the query tower of today with the pins of yesterday, of the day before and of a twin.

Three students of one scenario follow each other, each begun from the one before and passing once over its day; a fourth
has another seed and learns all their days at once. The newest query tower scores the day after with the pins of each.
``--demo DIR`` takes the log, the teacher's scores and the schema of a finished `adsieve demo --out DIR`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec.structs import replace

from benchmarks.harness import finish, parser
from benchmarks.main_job import run_demo
from contracts.bundle import Bundle
from contracts.records import LogPaths
from contracts.schema import FeatureSchema, load_schema
from distill.config import DistillConfig
from distill.presets import PRESETS
from distill.publish import publish_student
from distill.skew import SkewReport, measure_skew
from distill.skew_report import write_skew
from distill.train import train_student
from distill.warmstart import open_source

DAY = timedelta(days=1)
NAMES = ("own pins", "one day older", "two days older", "another seed")


def main() -> int:
    """Four trainings, then one sweep."""
    options = parser(__doc__)
    options.add_argument("--demo", type=Path, help="a finished demo; without it one is run")
    options.add_argument("--scenario", default="shopping", help="whose students are swept")
    options.add_argument(
        "--epochs", type=int, help="of the first student and of the other seed, instead of the preset's"
    )
    options.add_argument("--keep", type=Path, help="directory for skew.html and skew.json")
    given = options.parse_args()
    with _demo(given.demo) as demo, TemporaryDirectory(prefix="adsieve-skew-") as directory:
        report = sweep(demo, given.scenario, Path(directory), given.epochs)
    if given.keep is not None:
        write_skew(report, given.keep)
    return finish(given, figures(report), [])


def sweep(demo: Path, scenario: str, directory: Path, epochs: int | None) -> SkewReport:
    """Train and seal the four students below a directory, and score the last day with each one's pins."""
    log = LogPaths.under(demo / "log", demo / "scored" / "candidates")
    schema, config = load_schema(demo / scenario / "towers.yaml", fitted=True), PRESETS[scenario]()
    if epochs is not None:
        config = replace(config, loop=replace(config.loop, epochs=epochs))
    once = replace(config, loop=replace(config.loop, epochs=1), validation_share=0.0)
    first, last = _scored_days(log)
    students: list[Bundle] = []
    for start, end in ((first, last - 2 * DAY), (last - 2 * DAY, last - DAY), (last - DAY, last)):
        place, earlier = directory / f"{end:%m-%d}", students[-1].path if students else None
        training = once if students else config
        students.append(_student(place, schema, training, log, scenario, start, end, earlier))
    other = replace(config, seed=config.seed + 1)
    twin = _student(directory / "twin", schema, other, log, scenario, first, last, None)
    return measure_skew(students[2], [students[1], students[0], twin], log, start=last, cache=directory / "encoded")


def figures(report: SkewReport) -> dict[str, Any]:
    """Every figure by version, stage and head."""
    found: dict[str, Any] = {}
    for name, version in zip(NAMES, report.versions, strict=True):
        found[f"{name}: hours"] = version.hours
        for figure in version.figures:
            where = f"{name}: {figure.metric}, {figure.stage}, {figure.head}"
            found[where] = figure.value
            found[f"{where}, difference"] = f"{figure.difference:.4g} ({figure.low:.4g} to {figure.high:.4g})"
    return found


def _student(
    place: Path,
    schema: FeatureSchema,
    config: DistillConfig,
    log: LogPaths,
    scenario: str,
    start: datetime,
    end: datetime,
    earlier: Path | None,
) -> Bundle:
    """A sealed student of a period, begun from an earlier one where there is one."""
    source = None if earlier is None else open_source(earlier)
    run = train_student(schema, log, place / "run", config, scenario=scenario, start=start, end=end, warm_start=source)
    return publish_student(run, log, place / "bundle", start=start, end=end)


def _scored_days(log: LogPaths) -> tuple[datetime, datetime]:
    """Midnight before the first request that the teacher scored, and before the last one."""
    scored = ds.dataset(log.candidates).to_table(["request_id"], filter=ds.field("teacher_version").is_valid())
    requests = ds.dataset(log.requests).to_table(["request_id", "event_time"])
    times = requests.filter(pc.is_in(requests["request_id"], pc.unique(scored["request_id"])))["event_time"]
    ends = (pc.min(times).as_py(), pc.max(times).as_py())
    first, last = (moment.replace(hour=0, minute=0, second=0, microsecond=0) for moment in ends)
    return first, last


@contextmanager
def _demo(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with TemporaryDirectory(prefix="adsieve-skew-demo-") as directory:
        run_demo(Path(directory) / "demo")
        yield Path(directory) / "demo"


if __name__ == "__main__":
    sys.exit(main())
