"""The scaling study: trains a grid of sizes on growing spans of a log and tests them all on the same later days."""

import shutil
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from contracts.artifact import write_json
from contracts.errors import ArtifactError, InputError
from contracts.progress import progress
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from heavy_ranker.config import HeavyConfig
from heavy_ranker.evaluate import evaluate_run
from heavy_ranker.flops import count_flops
from heavy_ranker.run import with_groups
from heavy_ranker.scale_grid import Cell, cell_config, cell_schema, cell_start
from heavy_ranker.train import train_heavy

STUDY_FILE = "study.json"

T = TypeVar("T")


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """What every cell of a study shares; a directory holds cells of one study alone."""

    schema_fingerprint: str
    config: HeavyConfig
    until: datetime
    test_until: datetime | None


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One trained and tested cell.

    Args:
        cell: Its place in the grid, as :class:`Cell` has it.
        rows: Impressions trained on.
        parameters: Dense ones and those in tables.
        flops_per_ad: Of one request with one ad, nothing shared.
        metrics: On the test window, by task.
    """

    cell: Cell
    rows: int
    parameters: dict[str, int]
    flops_per_ad: int
    metrics: dict[str, dict[str, float]]


def run_study(
    schema: FeatureSchema,
    log: LogPaths,
    out: Path,
    config: HeavyConfig,
    cells: Iterable[Cell],
    *,
    until: datetime,
    test_until: datetime | None = None,
) -> list[CellResult]:
    """Train and test every cell that ``out`` does not hold yet; a study that was killed goes on where it stood.

    Args:
        schema: A fitted schema.
        log: Its datasets.
        out: Directory of the study; keeps a small file for each cell, no weights.
        config: Of the cell at the preset's sizes; the grid changes sizes and seed alone.
        cells: The grid.
        until: Where training ends and the test begins.
        test_until: Where the test ends; None for the end of the log.

    Raises:
        ConfigError: The sizes of a cell are out of range, do not fit the schema or the memory; nothing is trained.
        InputError: ``out`` holds another study.
    """
    wanted = list(cells)
    for cell in wanted:  # none is trained where the sizes of a later one do not fit
        with_groups(cell_schema(schema, cell), cell_config(config, cell))
    study = Study(schema_fingerprint=schema.fingerprint(), config=config, until=until, test_until=test_until)
    _claim(out, study)
    results = []
    with progress("Scaling study", total=len(wanted), unit="runs") as advance:
        for cell in wanted:
            path = out / f"{cell.name}.json"
            if not path.exists():
                write_json(path, _run_cell(schema, log, out / f".{cell.name}", study, cell))
            results.append(_read(path, CellResult))
            advance(1, note=cell.name)
    return results


def _read(path: Path, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except msgspec.DecodeError as error:
        raise ArtifactError(f"{path}: not a file of a scaling study: {error}") from error


def _claim(out: Path, study: Study) -> None:
    out.mkdir(parents=True, exist_ok=True)
    path = out / STUDY_FILE
    if not path.exists():
        write_json(path, study)
    elif _read(path, Study) != study:
        raise InputError(f"{out}: holds a study of another schema, configuration or time; choose another directory")


def _run_cell(schema: FeatureSchema, log: LogPaths, directory: Path, study: Study, cell: Cell) -> CellResult:
    own = cell_schema(schema, cell)
    run = train_heavy(
        own, log, directory, cell_config(study.config, cell), start=cell_start(cell, study.until), end=study.until
    )
    tested = evaluate_run(run, log, start=study.until, end=study.test_until)
    result = CellResult(
        cell=cell,
        rows=run.summary.impressions,
        parameters=run.summary.parameters,
        flops_per_ad=count_flops(run.model.ranker, own).alone,
        metrics=tested["slices"]["all"]["model"],
    )
    shutil.rmtree(directory)
    return result


def as_rows(results: Iterable[CellResult]) -> list[dict[str, float]]:
    """One flat record a cell, for tables."""
    return [
        asdict(result.cell)
        | {
            "rows": result.rows,
            "dense_parameters": result.parameters["dense"],
            "table_parameters": result.parameters["tables"],
            "flops_per_ad": result.flops_per_ad,
        }
        | {f"{task}_{name}": found[name] for task, found in result.metrics.items() for name in ("log_loss", "auc")}
        for result in results
    ]
