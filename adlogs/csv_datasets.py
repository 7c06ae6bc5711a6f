"""Makes a log out of CSV files that hold requests, candidates and ads apart."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from adlogs.csv_catalogue import ListedAds
from adlogs.csv_eligible import AdsOfDays, add_eligible
from adlogs.csv_grouping import GroupCheck, group_rows
from adlogs.csv_mapping import NEEDED, CsvMapping
from adlogs.csv_spill import DAY_US
from adlogs.csv_stages import ELIGIBLE, scenarios, stages_by_outcome, stages_of, without_unshown_outcomes
from adlogs.csv_summary import Findings
from adlogs.csv_tables import CsvTable, load_lookups
from adlogs.log_writer import LogWriter, PartWriter
from contracts.columns import instants
from contracts.errors import LogError


def convert_datasets(directory: Path, mapping: CsvMapping, out: Path, spill: Path, findings: Findings) -> None:
    """Write the datasets below ``out``, each file's rows in their order, the candidates of a request together.

    Args:
        directory: Folder of the CSV files.
        mapping: With requests, candidates and ads.
        out: An empty directory.
        spill: Another; candidates that are not in the order of requests lie there meanwhile.
        findings: Counts and warnings are noted there.

    Raises:
        LogError: A file is not as the mapping says.
    """
    if mapping.ads is None:
        raise ValueError("the mapping has no ads")
    writer, count, whole = LogWriter(out), mapping.eligible_per_request, mapping.whole_pools
    days = AdsOfDays() if count or whole else None
    first = _write_requests(directory, mapping, writer, findings, days)
    ads = ListedAds(directory, mapping, mapping.ads, writer, first // DAY_US * DAY_US, findings)
    ads.finish()
    _write_candidates(directory, mapping, writer, findings, days, out, spill)
    if days is not None:
        findings.sampled = add_eligible(out, days, ads.begins, count, whole, spill)
        findings.unshown += findings.sampled
        writer.counts["candidates"] += findings.sampled
    if mapping.outcomes is not None:
        parts = PartWriter(writer, "outcomes")
        for rows in _rows("outcomes", directory, mapping, findings):
            parts.add(rows)
        parts.close()
    findings.counts |= dict(writer.counts)


def _write_requests(
    directory: Path, mapping: CsvMapping, writer: LogWriter, findings: Findings, days: AdsOfDays | None
) -> int:
    """Write requests with the columns of look-up tables; returns the earliest moment, microseconds UTC."""
    lookups, parts = load_lookups(directory, mapping), PartWriter(writer, "requests")
    earliest = np.iinfo(np.int64).max
    for rows in _rows("requests", directory, mapping, findings):
        columns = {name: rows[name].combine_chunks() for name in rows.schema.names}
        columns["scenario"] = scenarios(rows, mapping.scenario)
        for lookup in lookups:
            joined, matched = lookup.joined(columns[lookup.key])
            columns |= joined
            findings.matched[lookup.name] += matched
        parts.add(pa.table(columns))
        if days is not None:
            days.add_requests(pa.table(columns))
        earliest = min(earliest, int(instants(columns["event_time"]).min(initial=earliest)))
    parts.close()
    if not writer.counts["requests"]:
        raise LogError(f"{directory}: the files of requests hold no row below their header")
    return earliest


def _write_candidates(
    directory: Path,
    mapping: CsvMapping,
    writer: LogWriter,
    findings: Findings,
    days: AdsOfDays | None,
    out: Path,
    spill: Path,
) -> None:
    parts, check = PartWriter(writer, "candidates"), GroupCheck()
    for rows in _rows("candidates", directory, mapping, findings):
        check.add(rows["request_id"].combine_chunks())
        if days is not None:
            days.add_candidates(rows)
        known = {"stage", "shown"} & set(rows.schema.names)
        stages = stages_of(rows, otherwise=ELIGIBLE) if known else stages_by_outcome(rows)
        rows = rows.drop_columns(sorted(known)).append_column("stage", stages)
        parts.add(without_unshown_outcomes(rows, findings))
    parts.close()
    if not writer.counts["candidates"]:
        raise LogError(f"{directory}: the files of candidates hold no row below their header")
    if not check.is_grouped:
        group_rows(out / "candidates", spill)


def _rows(name: str, directory: Path, mapping: CsvMapping, findings: Findings) -> Iterator[pa.Table]:
    source = CsvTable(name, directory, mapping, getattr(mapping, name), frozenset(NEEDED[name]))
    findings.note_left_out(source)
    for batch in source.batches():
        yield pa.Table.from_batches([batch])
