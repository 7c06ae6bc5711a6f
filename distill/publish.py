"""Seals a finished run: graphs, weights, the rows that check them, saved requests, and how good the student is."""

from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from contracts.bundle import GRAPHS, PARITY_FILE, WEIGHTS_FILE, Bundle, seal_bundle
from contracts.errors import InputError, MismatchError
from contracts.records import LogPaths
from contracts.tensors import read_tensors
from distill.data import read_scored
from distill.evaluate import Evaluation, assess_examples
from distill.report import SLICES_FILE
from distill.run import Run
from distill.slice_table import write_slices
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from modeling.examples import Examples
from modeling.profile import write_profile
from modeling.run import EXAMPLES
from modeling.saved_requests import write_saved_requests
from towers.export import ParityRows, export_two_tower
from towers.serving import TwoTowerServing

PARITY_ROWS = 256
MIN_REQUESTS = 20
SAVED_REQUESTS = 32


def publish_student(
    run: Run, log: LogPaths, out: Path, *, start: datetime | None = None, end: datetime | None = None, threads: int = 2
) -> Bundle:
    """Seal a bundle at ``out``: it appears whole, checked and evaluated, or not at all.

    Args:
        run: A finished run.
        log: Teacher-scored, of the run's teacher. Requests, parity rows, feature profile and slices come from it.
        out: Directory to create.
        start: Only requests not before this time.
        end: Only requests before this time.
        threads: Threads of the graphs while they are checked.

    Raises:
        InputError: ``out`` exists, or the log has too few requests of the scenario.
        MismatchError: The log was scored by another teacher than the one that the student was distilled from.
        ArtifactError: A graph gives other embeddings than the model; nothing is left behind.
    """
    examples = read_scored(run.schema, log, run.path / EXAMPLES, scenario=run.summary.scenario, start=start, end=end)
    _check_log(run, log, examples)
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
        fill=lambda directory: _fill(run, examples, directory, threads),
    )


def _fill(run: Run, examples: Examples, directory: Path, threads: int) -> None:
    """Write everything, with the parity check between the graphs and what is measured through them."""
    export_two_tower(run.model, directory, parity_rows(examples))
    tensors = read_tensors(directory / WEIGHTS_FILE)
    query_engine, pin_engine = (OnnxRuntimeEngine(directory / name, threads=threads) for name in GRAPHS["two_tower"])
    serving = TwoTowerServing(run.schema, tensors, query_engine=query_engine, pin_engine=pin_engine)
    serving.check_parity(read_tensors(directory / PARITY_FILE), source=str(run.path))
    write_saved_requests(run.schema, examples, directory, count=SAVED_REQUESTS)
    write_profile(run.schema, examples, directory)
    write_slices([_evaluate(run, serving, examples)], directory / SLICES_FILE)


def parity_rows(examples: Examples) -> ParityRows:
    """Requests and ad rows spread evenly over the log."""
    return ParityRows(
        query=examples.query.take(_spread(np.unique(examples.request_row))),
        ads=examples.ad.take(_spread(np.unique(examples.ad_row))),
    )


def _evaluate(run: Run, serving: TwoTowerServing, examples: Examples) -> Evaluation:
    return assess_examples(
        run.schema,
        serving,
        examples,
        bundle=str(run.path),
        trained_on=run.summary.teacher_version,
        trained_until=run.summary.watermark,
    ).evaluation


def _check_log(run: Run, log: LogPaths, examples: Examples) -> None:
    if examples.teacher_version != run.summary.teacher_version:
        raise MismatchError(
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
