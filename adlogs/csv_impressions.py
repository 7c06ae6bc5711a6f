"""Makes a log out of one table of impressions: a row an ad that was shown, with columns of user, ad and moment."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_catalogue import Catalogue, DerivedAds, ListedAds
from adlogs.csv_column import LABEL
from adlogs.csv_days import Requests, distinct_pairs, requests_of, sampled_eligible
from adlogs.csv_mapping import CsvMapping
from adlogs.csv_pools import latest_of_days, spread, whole_pools
from adlogs.csv_spill import DAY_US, DaySpill
from adlogs.csv_stages import ELIGIBLE, WINNER, scenarios, stages_of, without_unshown_outcomes
from adlogs.csv_summary import Findings
from adlogs.csv_tables import CsvTable, LoadedLookup, load_lookups
from adlogs.csv_values import MICROSECONDS
from adlogs.log_writer import LogWriter
from contracts.errors import LogError
from contracts.progress import progress

_KEYS = frozenset({"event_time", "ad_id", "request_id"})


def convert_impressions(directory: Path, mapping: CsvMapping, out: Path, spill: Path, findings: Findings) -> None:
    """Write the datasets below ``out``.

    Args:
        directory: Folder of the CSV files.
        mapping: With impressions.
        out: An empty directory.
        spill: Another; the impressions lie there by day meanwhile.
        findings: Counts and warnings are noted there.

    Raises:
        LogError: A file is not as the mapping says.
    """
    if mapping.impressions is None:
        raise ValueError("the mapping has no impressions")
    names = {column.name for column in mapping.impressions.columns.values()}
    table = CsvTable("impressions", directory, mapping, mapping.impressions, _KEYS & names)
    findings.note_left_out(table)
    days = DaySpill(spill, table.schema)
    for batch in table.batches():
        days.add(batch)
    if not days.rows:
        raise LogError(f"{table.files[0]}: holds no row below its header, expected impressions")
    findings.note_gaps(days.rows)
    _Days(directory, mapping, LogWriter(out), findings, dict(days.rows)).write(days)


class _Days:
    """Writes a log day by day; what it keeps of earlier days is the ids of ads and how each was last."""

    def __init__(
        self, directory: Path, mapping: CsvMapping, writer: LogWriter, findings: Findings, rows: dict[int, int]
    ) -> None:
        self._mapping, self._writer, self._findings = mapping, writer, findings
        columns = mapping.impressions.columns.values() if mapping.impressions else ()
        self._query = [
            c.name
            for c in columns
            if c.belongs_to == "query" and c.name not in ("request_id", "event_time", "scenario")
        ]
        self._pair = [c.name for c in columns if c.belongs_to == "pair" and c.name not in ("stage", "shown")]
        self._labels = [name for name in self._pair if name.startswith(LABEL)]
        self._lookups = load_lookups(directory, mapping)
        for lookup in mapping.lookups.values():
            findings.note_left_out(CsvTable("lookup", directory, mapping, lookup))
        begins = min(rows) * DAY_US
        self._whole = latest_of_days(mapping.whole_pools, rows)
        own = [c.name for c in columns if c.belongs_to == "ad" and c.name != "ad_id"]
        self._ads: Catalogue = (
            ListedAds(directory, mapping, mapping.ads, writer, begins, findings)
            if mapping.ads is not None
            else DerivedAds(own, writer, mapping.scenario, findings)
        )

    def write(self, spilled: DaySpill) -> None:
        days = spilled.days()
        with progress("Writing", total=len(days), unit="days") as advance:
            for day, rows in spilled.tables():
                self._write_day(day, rows)
                advance(1)
        self._ads.finish()
        self._findings.counts |= dict(self._writer.counts)

    def _write_day(self, day: int, rows: pa.Table) -> None:
        stem = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).strftime("%Y-%m-%d")
        self._ads.add(stem, rows)
        requests = requests_of(rows)
        self._findings.impressions += rows.num_rows
        self._findings.note_mixed(rows, requests, self._query)
        shown = distinct_pairs(rows, requests, self._labels)
        self._findings.repeated += rows.num_rows - len(shown)
        self._writer.write("requests", stem, self._requests(rows, requests))
        self._writer.write("candidates", stem, self._candidates(day, rows, requests, shown))

    def _requests(self, rows: pa.Table, requests: Requests) -> pa.Table:
        firsts = rows.take(pa.array(requests.row))
        columns = {
            "request_id": requests.ids,
            "event_time": pa.array(requests.times, MICROSECONDS),
            "scenario": scenarios(firsts, self._mapping.scenario),
            **{name: firsts[name].combine_chunks() for name in self._query},
        }
        for lookup in self._lookups:
            columns |= self._joined(lookup, columns)
        return pa.table(columns)

    def _joined(self, lookup: LoadedLookup, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        found, matched = lookup.joined(columns[lookup.key])
        self._findings.matched[lookup.name] += matched
        return found

    def _candidates(self, day: int, rows: pa.Table, requests: Requests, shown: np.ndarray) -> pa.Table:
        """Impressions, and behind those of each request the other ads that could have been shown."""
        request, row, is_shown = requests.of[shown], shown, np.ones(len(shown), bool)
        if self._mapping.eligible_per_request or self._mapping.whole_pools:
            extra, extra_row = self._eligible(day, rows, requests)
            request, row = np.append(request, extra), np.append(row, extra_row)
            is_shown = np.append(is_shown, np.zeros(len(extra), bool))
            self._findings.sampled += len(extra)
            self._findings.without_bid += len(extra) if "bid" in self._pair else 0
        order = np.lexsort((np.arange(len(row)), ~is_shown, request))
        request, row, is_shown = request[order], row[order], is_shown[order]
        stages = stages_of(rows, otherwise=WINNER).take(pa.array(row))
        absent = pa.array(np.where(is_shown, row, -1), mask=~is_shown)
        columns = {
            "request_id": requests.ids.take(pa.array(request)),
            "ad_id": rows["ad_id"].combine_chunks().take(pa.array(row)),
            "stage": pc.if_else(pa.array(is_shown), stages, ELIGIBLE),
        }
        columns |= {name: rows[name].combine_chunks().take(absent) for name in self._pair}
        return without_unshown_outcomes(pa.table(columns), self._findings)

    def _eligible(self, day: int, rows: pa.Table, requests: Requests) -> tuple[np.ndarray, np.ndarray]:
        names = scenarios(rows, self._mapping.scenario).dictionary_encode()
        codes = np.asarray(names.indices).astype(np.int64)
        ads = rows["ad_id"].combine_chunks()
        groups, begins = (codes[requests.row], codes), self._ads.begins(ads)
        start, number = self._whole.get(day, (1.0, 0))
        begin = int(start * len(requests.row))
        chosen = begin + spread(number, len(requests.row) - begin)
        whole, whole_row = whole_pools(requests, ads, groups, begins, chosen)
        drawn, drawn_row = sampled_eligible(requests, ads, groups, begins, self._mapping.eligible_per_request, day)
        kept = ~np.isin(drawn, chosen)
        return np.append(drawn[kept], whole), np.append(drawn_row[kept], whole_row)
