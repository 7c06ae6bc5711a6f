"""`adsieve convert csv`: a folder of CSV files and a mapping become a log, which is verified before it appears."""

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from adlogs.csv_column import LABEL
from adlogs.csv_datasets import convert_datasets
from adlogs.csv_files import NAME_FOLDER
from adlogs.csv_impressions import convert_impressions
from adlogs.csv_mapping import CsvMapping
from adlogs.csv_summary import Findings
from adlogs.log_span import split_moments
from adlogs.publish import published_directory
from adlogs.validate import validate_log
from contracts.artifact import write_json
from contracts.config import load_config
from contracts.errors import ConfigError, LogError
from contracts.records import LogPaths, open_dataset
from contracts.schema import Feature, FeatureSchema, Table

RECORD = "conversion.json"


def convert_csv(directory: Path, mapping_file: Path, out: Path) -> dict[str, Any]:
    """Write requests/, candidates/, ads/, perhaps outcomes/, and conversion.json under ``out``.

    The files are read as a stream; look-up tables, the ids of ads and, of impressions, one day at a time are held in
    memory. The log is written aside, checked like by `adsieve validate`, and appears by one rename.

    Args:
        directory: Folder of the CSV files.
        mapping_file: Says what each file and column is.
        out: Directory to create.

    Returns:
        What conversion.json holds: ``counts``, ``warnings``, ``first`` and ``last`` moment, and ``teacher_until`` and
        ``student_until``, which divide the log as training does.

    Raises:
        ConfigError: The mapping is not one, or names no outcome.
        LogError: A file is not as the mapping says, what comes out breaks a rule of logs, or ``out`` exists already.
    """
    mapping = load_config(mapping_file, CsvMapping)
    if not directory.is_dir():
        raise LogError(f"{directory}: no such folder, expected one with CSV files", next_step=NAME_FOLDER)
    _require_outcome(mapping, mapping_file)
    findings = Findings()
    with published_directory(out) as aside:
        spill = Path(mkdtemp(prefix=".rows-", dir=aside))
        convert = convert_datasets if mapping.impressions is None else convert_impressions
        convert(directory, mapping, aside, spill, findings)
        shutil.rmtree(spill)
        log = LogPaths.under(aside)
        record = {**findings.record(), **_verified(log, aside, mapping_file)}
        write_json(aside / RECORD, record)
    return record


def _require_outcome(mapping: CsvMapping, mapping_file: Path) -> None:
    """Refuse a mapping without an outcome before anything is read.

    Raises:
        ConfigError: No column of impressions, candidates or outcomes becomes ``label_TASK``.
    """
    tables = {name: getattr(mapping, name) for name in ("impressions", "candidates", "outcomes")}
    given = {name: table for name, table in tables.items() if table is not None}
    if not any(column.name.startswith(LABEL) for table in given.values() for column in table.columns.values()):
        raise ConfigError(
            f"{mapping_file}: {' or '.join(given)}: no column becomes label_TASK, expected an outcome of 0 and 1 for "
            "the models to learn",
            next_step=f"give the column of clicks or the like its name in {mapping_file}: {{name: label_click}}",
        )


def _verified(log: LogPaths, aside: Path, mapping_file: Path) -> dict[str, Any]:
    """Hold the log against the rules of all logs, and return the moments that divide it.

    Raises:
        LogError: It breaks a rule, or has too few moments; nothing is published.
    """
    try:
        validate_log(log, _plainest_schema(log)).require_valid()
        return split_moments(log)
    except LogError as error:
        message = str(error).replace(f"{aside}/", "")
        raise LogError(
            f"{mapping_file}: what it makes is no sound log, and nothing was written: {message}",
            next_step=f"mend {mapping_file} or the CSV files, and convert again",
        ) from None


def _plainest_schema(log: LogPaths) -> FeatureSchema:
    """The least that a log is checked against: its first outcome, its objectives, and the ids of its ads."""
    places = [log.candidates] if log.outcomes is None else [log.candidates, log.outcomes]
    names = [name for place in places for name in open_dataset(place).schema.names]
    tasks = [name.removeprefix(LABEL) for name in names if name.startswith(LABEL)]
    objectives = {text for path in (log.candidates, log.ads) for text in _texts(path, "objective")}
    return FeatureSchema(
        tasks=(tasks[0],),
        objectives=dict.fromkeys(sorted(objectives)) or {"click": tasks[0]},
        tables={"ad": Table(dim=1, buckets=4)},
        features={"ad_id": Feature(side="ad", kind="categorical", table="ad")},
    )


def _texts(path: str, column: str) -> set[str]:
    dataset = open_dataset(path)
    if column not in dataset.schema.names:
        return set()
    found: set[str] = set()
    for batch in dataset.to_batches([column]):
        found.update(text for text in batch[column].unique().to_pylist() if text is not None)
    return found
