"""The ads of a log made from CSV: listed in a file of their own, or derived from what impressions say of them."""

from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_days import AdChanges
from adlogs.csv_mapping import CsvMapping, TableMapping
from adlogs.csv_stages import scenarios
from adlogs.csv_summary import Findings
from adlogs.csv_tables import CsvTable
from adlogs.csv_values import MICROSECONDS
from adlogs.log_writer import LogWriter, PartWriter
from contracts.columns import instants


class Catalogue(Protocol):
    """Writes ``ads/`` while days of impressions pass."""

    def add(self, stem: str, rows: pa.Table) -> None:
        """Take the impressions of a day."""

    def begins(self, ads: pa.Array) -> np.ndarray:
        """When the first row of each ad begins, microseconds UTC; all were in the days so far."""

    def finish(self) -> None:
        """Write what is left."""


class ListedAds:
    """A catalogue of its own file; an ad that it lacks gets a row without columns.

    Args:
        directory: Folder of the CSV files.
        mapping: Of the folder.
        table: Of the catalogue.
        writer: Of the log.
        begins: Of rows without valid_from, microseconds UTC.
        findings: Counts are noted there.
    """

    def __init__(
        self,
        directory: Path,
        mapping: CsvMapping,
        table: TableMapping,
        writer: LogWriter,
        begins: int,
        findings: Findings,
    ) -> None:
        self._writer, self._begins, self._scenario, self._findings = writer, begins, mapping.scenario, findings
        names = {column.name for column in table.columns.values()}
        source = CsvTable("ads", directory, mapping, table, frozenset({"ad_id", "valid_from"} & names))
        findings.note_left_out(source)
        self._first: dict[str, int] = {}
        self._own: dict[str, str] = {}
        self._unlisted: dict[str, None] = {}
        parts = PartWriter(writer, "ads")
        for batch in source.batches():
            rows = self._whole(pa.Table.from_batches([batch]))
            self._note(rows)
            parts.add(rows)
        parts.close()

    def add(self, stem: str, rows: pa.Table) -> None:
        for ad in pc.unique(rows["ad_id"]).to_pylist():
            if ad not in self._first:
                self._unlisted[ad] = None
        self._findings.note_elsewhere(rows["ad_id"], scenarios(rows, self._scenario), self._own, self._scenario)

    def begins(self, ads: pa.Array) -> np.ndarray:
        encoded = ads.dictionary_encode()
        first = np.array([self._first.get(ad, self._begins) for ad in encoded.dictionary.to_pylist()], np.int64)
        return first[np.asarray(encoded.indices)]

    def finish(self) -> None:
        ids = pa.array(self._unlisted, pa.string())
        self._findings.unlisted += len(ids)
        self._writer.write("ads", "unlisted", self._whole(pa.table({"ad_id": ids})))

    def _whole(self, rows: pa.Table) -> pa.Table:
        """With the moment from which each row holds, and its scenario."""
        if "valid_from" not in rows.schema.names:
            rows = rows.add_column(1, "valid_from", pa.array([self._begins] * rows.num_rows, MICROSECONDS))
        found = scenarios(rows, self._scenario)
        if "scenario" in rows.schema.names:
            return rows.set_column(rows.schema.get_field_index("scenario"), "scenario", found)
        return rows.add_column(2, "scenario", found)

    def _note(self, rows: pa.Table) -> None:
        times = instants(rows["valid_from"].combine_chunks()).tolist()
        for ad, time in zip(rows["ad_id"].to_pylist(), times, strict=True):
            self._first[ad] = min(time, self._first.get(ad, time))
        self._own |= zip(rows["ad_id"].to_pylist(), rows["scenario"].to_pylist(), strict=True)


class DerivedAds:
    """A row whenever the columns of an ad change among the impressions.

    Args:
        columns: Those of the ad, ad_id left out.
        writer: Of the log.
        scenario: Of impressions that name none.
        findings: Ads of several scenarios are noted there.
    """

    def __init__(self, columns: list[str], writer: LogWriter, scenario: str, findings: Findings) -> None:
        self._columns, self._writer, self._scenario, self._findings = columns, writer, scenario, findings
        self._own: dict[str, str] = {}
        self._changes = AdChanges(columns)

    def add(self, stem: str, rows: pa.Table) -> None:
        new = rows.take(pa.array(self._changes.add(rows)))
        columns = {"ad_id": new["ad_id"], "valid_from": new["event_time"], "scenario": scenarios(new, self._scenario)}
        columns |= {name: new[name] for name in self._columns if name != "scenario"}
        self._writer.write("ads", stem, pa.table(columns))
        self._own |= zip(new["ad_id"].to_pylist(), columns["scenario"].to_pylist(), strict=True)
        self._findings.note_elsewhere(rows["ad_id"], scenarios(rows, self._scenario), self._own, self._scenario)

    def begins(self, ads: pa.Array) -> np.ndarray:
        return self._changes.begins(ads)

    def finish(self) -> None:
        """Nothing is left."""
