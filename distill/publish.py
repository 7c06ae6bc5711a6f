"""Seals a finished run: graphs, weights, the rows that check them, saved requests, and how good the student is."""

from datetime import datetime
from pathlib import Path
from shutil import copyfile

import msgspec
import numpy as np

from contracts.artifact import write_json
from contracts.bundle import GRAPHS, PARITY_FILE, WEIGHTS_FILE, Bundle, seal_bundle
from contracts.errors import InputError, WrongArtifactError
from contracts.records import LogPaths
from contracts.tensors import read_tensors
from distill.compare import compare
from distill.data import read_scored
from distill.evaluate import Assessment, assess_bundle, assess_examples
from distill.gate import Gate, judge
from distill.gate_record import GATE_FILE, GateRecord
from distill.report import SLICES_FILE
from distill.run import Run
from distill.slice_table import write_slices
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from modeling.examples import Examples
from modeling.profile import PROFILE_FILE
from modeling.run import EXAMPLES
from modeling.saved_requests import write_saved_requests
from modeling.warm_source import write_states
from towers.export import ParityRows, export_two_tower
from towers.serving import TwoTowerServing

PARITY_ROWS = 256
MIN_REQUESTS = 20
SAVED_REQUESTS = 32

_Period = tuple[datetime | None, datetime | None]


def publish_student(
    run: Run,
    log: LogPaths,
    out: Path,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    threads: int = 2,
    gate: Gate | None = None,
) -> Bundle:
    """Seal a bundle at ``out``: it appears whole, checked and evaluated, or not at all.

    Args:
        run: A finished run of one scenario; :func:`distill.one_scenario.of_scenario` makes one of a run of several.
        log: Teacher-scored, of the run's teacher. Requests, parity rows and slices come from it; the feature profile is
            that of the pairs trained on.
        out: Directory to create.
        start: Only requests not before this time.
        end: Only requests before this time.
        threads: Threads of the graphs while they are checked.
        gate: What the student is held against first, on this log; the bundle keeps the outcome. None seals it whatever
            it is worth.

    Raises:
        InputError: ``out`` exists, or the log has too few requests of the scenario.
        WrongArtifactError: The log was scored by another teacher than the one that the student was distilled from.
        ArtifactError: A graph gives other embeddings than the model; nothing is left behind.
        LaunchRefused: The student fails at the gate; nothing is left behind.
    """
    if gate is not None and gate.against is not None:
        _check_serving(run, gate.against)
    examples = read_scored(run.schema, log, run.path / EXAMPLES, scenario=run.summary.scenario, start=start, end=end)
    _check_log(run, log, examples)
    if not (run.path / PROFILE_FILE).exists():
        raise InputError(f"{run.path}: has no {PROFILE_FILE}, the statistics of what it was trained on; train it again")
    period = (start, end)
    return seal_bundle(
        out,
        kind="two_tower",
        scenario=run.summary.scenario,
        schema=run.schema,
        config=msgspec.to_builtins(run.config),
        dims={
            "num_heads": len(run.schema.tasks),
            "head_dim": run.config.towers.head_dim,
            "query_flat": run.model.tables.flat_dim("query"),
            "ad_flat": run.model.tables.flat_dim("ad"),
        },
        watermark=run.summary.watermark,
        teacher_version=run.summary.teacher_version,
        metrics=run.summary.metrics,
        fill=lambda directory: _fill(run, examples, directory, threads, gate, period),
    )


def _fill(run: Run, examples: Examples, directory: Path, threads: int, gate: Gate | None, period: _Period) -> None:
    """Write everything, with the parity check between the graphs and what is measured through them."""
    export_two_tower(run.model, directory, parity_rows(examples))
    write_states(run.path, directory, dense=not run.folded)
    tensors = read_tensors(directory / WEIGHTS_FILE)
    query_engine, pin_engine = (OnnxRuntimeEngine(directory / name, threads=threads) for name in GRAPHS["two_tower"])
    serving = TwoTowerServing(run.schema, tensors, query_engine=query_engine, pin_engine=pin_engine)
    serving.check_parity(read_tensors(directory / PARITY_FILE), source=str(run.path))
    assessment = _assess(run, serving, examples)
    if gate is not None:
        write_json(directory / GATE_FILE, _pass_gate(gate, run, assessment, examples, period, threads))
    write_saved_requests(run.schema, examples, directory, count=SAVED_REQUESTS)
    copyfile(run.path / PROFILE_FILE, directory / PROFILE_FILE)
    write_slices([assessment.evaluation], directory / SLICES_FILE)


def _pass_gate(
    gate: Gate, run: Run, assessment: Assessment, examples: Examples, period: _Period, threads: int
) -> GateRecord:
    """Judge the student beside the one that serves, which encodes the same log by its own schema."""
    comparison = None
    if gate.against is not None:
        start, end = period
        serving = assess_bundle(
            gate.against, examples.log, start=start, end=end, threads=threads, cache=run.path / EXAMPLES
        )
        comparison = compare(serving, assessment)
    times = np.asarray(examples.event_time)[np.unique(examples.request_row)]
    return judge(gate, assessment, comparison, trained_until=run.summary.watermark, event_time=times)


def parity_rows(examples: Examples) -> ParityRows:
    """Requests and ad rows spread evenly over the log."""
    return ParityRows(
        query=examples.query.take(_spread(np.unique(examples.request_row))),
        ads=examples.ad.take(_spread(np.unique(examples.ad_row))),
    )


def _assess(run: Run, serving: TwoTowerServing, examples: Examples) -> Assessment:
    return assess_examples(
        run.schema,
        serving,
        examples,
        bundle=str(run.path),
        trained_on=run.summary.teacher_version,
        trained_until=run.summary.watermark,
    )


def _check_serving(run: Run, against: Bundle) -> None:
    """A student can be held against one of its own scenario that has no head more."""
    manifest, own = against.manifest, run.summary.scenario
    if manifest.scenario != own:
        raise WrongArtifactError(
            f"{against.path}: serves scenario {manifest.scenario}, the student of {run.path} {own}"
        )
    lacking = [task for task in manifest.tasks if task not in run.schema.tasks]
    if lacking:
        raise WrongArtifactError(
            f"{against.path}: has head {lacking[0]}, which the student of {run.path} lacks, so that they cannot be "
            "compared; --against none leaves the floors"
        )


def _check_log(run: Run, log: LogPaths, examples: Examples) -> None:
    if examples.teacher_version != run.summary.teacher_version:
        raise WrongArtifactError(
            f"{log.candidates}: scored by {examples.teacher_version}, but {run.path} was distilled from "
            f"{run.summary.teacher_version}; pass the log that it was trained on"
        )
    found = len(np.unique(examples.request_row))
    if found < MIN_REQUESTS:
        raise InputError(
            f"{log.requests}: {found} requests of scenario {run.summary.scenario} in this period, "
            f"a bundle keeps at least {MIN_REQUESTS}"
        )


def _spread(rows: np.ndarray) -> np.ndarray:
    """At most ``PARITY_ROWS`` of the rows, evenly over all."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, PARITY_ROWS).astype(np.int64))]
