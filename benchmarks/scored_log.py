"""Teacher-scored logs, made by the product's commands: the teacher learns from the first half and scores the rest."""

import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc

from contracts.records import LogPaths, open_dataset
from contracts.schema import FeatureSchema, load_schema

QUICK_TEACHER = ("--validation-share", "0", "--epochs", "1", "--batch-size", "512", "--learning-rate", "0.002")
"""What `adsieve demo` teaches with on the real log."""


@dataclass(frozen=True)
class ScoredLog:
    """A log that a teacher scored from ``start`` on; students learn before ``unseen`` and are judged from then on.

    Args:
        directory: Holds the log's copy of candidates with scores, and the schemas fitted here.
        log: Its datasets, with the scored candidates.
        source: Directory of the log.
    """

    directory: Path
    source: Path
    start: datetime
    unseen: datetime

    @property
    def log(self) -> LogPaths:
        return LogPaths.under(self.source, self.directory / "scored" / "candidates")

    def schema(self, name: str) -> FeatureSchema:
        """A bundled schema, fitted on all that is before the unseen days."""
        path = self.directory / f"{name}.yaml"
        if not path.exists():
            adsieve("schema", "fit", name, "--logs", self.source, "--out", path, "--until", self.unseen.isoformat())
        return load_schema(path, fitted=True)


def simulated(directory: Path, *, preset: str, seed: int) -> ScoredLog:
    """A simulated log whose last day is unseen, and whose first half teaches the teacher, as in `adsieve demo`.

    What an earlier call has made in the same directory is found again.
    """
    source = directory / "log"
    if not (directory / "scored" / "candidates").exists():
        adsieve("simulate", source, "--preset", preset, "--seed", seed)
    times = _event_times(source)
    first, last = pc.min(times).as_py(), pc.max(times).as_py()
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    days = (last - midnight).days + 1
    found = ScoredLog(
        directory, source, start=midnight + timedelta(days=days // 2), unseen=midnight + timedelta(days=days - 1)
    )
    _teach(found, "simulated_heavy")
    return found


def real(directory: Path, source: Path) -> ScoredLog:
    """The real log with its own split: rows after it are unseen, the first half of those before it teach the teacher.

    Args:
        directory: Takes what is made.
        source: The raw KuaiRand log, or the directory that `adsieve convert kuairand` wrote.
    """
    converted = source
    if not (source / "split.json").exists():
        converted = directory / "log"
        adsieve("convert", "kuairand", source, "--out", converted)
    unseen = datetime.fromisoformat(json.loads((converted / "split.json").read_text())["train_until"])
    times = sorted(time for time in _event_times(converted).to_pylist() if time < unseen)
    found = ScoredLog(directory, converted, start=times[len(times) // 2], unseen=unseen)
    _teach(found, "kuairand_heavy", *QUICK_TEACHER)
    return found


def adsieve(*words: object) -> None:
    """Run one of our own commands; its output goes to standard error."""
    subprocess.run([sys.executable, "-m", "adsieve", *map(str, words)], check=True, stdout=sys.stderr)


def _teach(log: ScoredLog, schema_name: str, *options: str) -> None:
    """Train and seal a heavy ranker, then let it score what came after."""
    if (log.directory / "scored" / "candidates").exists():
        return
    schema, run, bundle = (log.directory / name for name in ("heavy.yaml", "heavy-run", "heavy"))
    start = log.start.isoformat()
    common, until = ("--logs", log.source), ("--until", start)
    adsieve("schema", "fit", schema_name, *common, "--out", schema, *until)
    adsieve("heavy", "train", *common, "--schema", schema, "--out", run, *until, *options)
    adsieve("heavy", "export", "--run", run, *common, "--out", bundle)
    adsieve("heavy", "score", "--bundle", bundle, *common, "--out", log.directory / "scored", "--from", start)


def _event_times(log: Path) -> "pc.ChunkedArray":
    return open_dataset(str(log / "requests")).to_table(["event_time"])["event_time"]
