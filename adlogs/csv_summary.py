"""What a conversion of CSV files found: counts, and warnings that are worth a look."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_days import Requests
from adlogs.csv_tables import CsvTable

_GAP_DAYS = 365


@dataclass
class Findings:
    """Filled while a log is written.

    Args:
        counts: Rows by dataset.
        impressions: Rows of the table of impressions.
        apart: A day of impressions, how many it has, and the days until the next one that has any.
        repeated: Impressions of an ad that came again in its request, and were left out.
        sampled: Pairs drawn as eligible.
        without_bid: Those of them that have no bid, where the others have one.
        unshown: Ads of requests that were not shown.
        cleared: Positions, and outcomes of 0, of ads that were not shown.
        unlisted: Ads of impressions that the catalogue lacks.
        elsewhere: Ads that were shown in another scenario than their own.
        matched: Requests that found their row, by look-up table.
        left_out: Columns that the mapping does not name, by file.
        mixed: Requests whose rows differ in a column of the request, by column.
    """

    counts: dict[str, int] = field(default_factory=dict)
    impressions: int = 0
    apart: list[tuple[date, int, int]] = field(default_factory=list)
    repeated: int = 0
    sampled: int = 0
    without_bid: int = 0
    unshown: int = 0
    cleared: int = 0
    unlisted: int = 0
    elsewhere: set[str] = field(default_factory=set)
    matched: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    mixed: Counter[str] = field(default_factory=Counter)

    def note_left_out(self, table: CsvTable) -> None:
        """Note the columns that are not converted."""
        if names := table.left_out():
            self.left_out[table.files[0].name] = names

    def note_gaps(self, rows: Mapping[int, int]) -> None:
        """Note gaps of a year, which a wrong time makes: ``rows`` counts impressions by day since 1970."""
        days = sorted(rows)
        for day, later in pairwise(days):
            if later - day > _GAP_DAYS:
                self.apart.append((date(1970, 1, 1) + timedelta(day), rows[day], later - day))

    def note_mixed(self, rows: pa.Table, requests: Requests, columns: list[str]) -> None:
        """Note columns of the request that differ among its impressions; the first one's value is kept."""
        if len(requests.row) == rows.num_rows:
            return
        first = pa.array(requests.row[requests.of])
        for name in columns:
            column = rows[name].combine_chunks()
            if pa.types.is_list(column.type):
                continue
            differs = pc.invert(pc.equal(column, column.take(first)).fill_null(True))
            found = len(np.unique(requests.of[np.asarray(differs)]))
            if found:
                self.mixed[name] += found

    def note_elsewhere(self, ads: pa.ChunkedArray, shown: pa.Array, own: dict[str, str], otherwise: str) -> None:
        """Note ads of impressions that were shown in a scenario other than their own.

        Args:
            ads: Ids, string [N].
            shown: Scenario of each impression, string [N].
            own: Scenario of each ad that has one.
            otherwise: Of the other ads.
        """
        pairs = pa.table({"ad": ads, "shown": shown}).group_by(["ad", "shown"]).aggregate([])
        for ad, scenario in zip(pairs["ad"].to_pylist(), pairs["shown"].to_pylist(), strict=True):
            if own.get(ad, otherwise) != scenario:
                self.elsewhere.add(ad)

    def warnings(self) -> list[str]:
        """Sentences, one a finding."""
        requests = self.counts.get("requests", 0)
        found = [f"{file}: left out {', '.join(names)}" for file, names in self.left_out.items()]
        for name, count in self.mixed.items():
            found.append(f"{name}: differs within {count:,} requests, whose first value was kept; of side pair or ad?")
        for name, count in self.matched.items():
            if count < requests:
                found.append(f"{name}: has no row for {requests - count:,} of {requests:,} requests")
        for day, count, gap in self.apart:
            found.append(f"{day}, with {count:,} impressions, lies {gap:,} days before the next; is a time wrong?")
        if self.repeated:
            found.append(f"{self.repeated:,} rows show an ad again in the same request and were left out")
        if self.unlisted:
            found.append(f"{self.unlisted:,} ads of the impressions are not in the catalogue, and so have no columns")
        if self.without_bid:
            found.append(
                f"bid: has no value for the {self.without_bid:,} ads that joined requests as eligible, and ads "
                "without a bid are dropped where others have one; give the column side: ad, or leave it out: all bids "
                "are 1 then"
            )
        if self.elsewhere:
            found.append(
                f"{len(self.elsewhere):,} ads were shown in another scenario than their own, whose release will not "
                "know them: an ad has one scenario, that of its row in the catalogue or of the impression that made "
                "the row. Where scenarios share ads, name the column otherwise, such as surface: a feature of requests"
            )
        if self.counts.get("candidates") and not self.unshown:
            remedy = "set eligible_per_request" + (
                "" if self.impressions else ", or let candidates hold what retrieval found too, with no outcome"
            )
            found.append(
                f"every ad of a request was shown: a two-tower learns nothing of those that were not; {remedy}"
            )
        if self.cleared:
            found.append(f"{self.cleared:,} outcomes or positions of ads that were not shown became null")
        return found

    def record(self) -> dict[str, Any]:
        """As plain data."""
        counts = dict(self.counts) | ({"impressions": self.impressions} if self.impressions else {})
        if self.sampled:
            counts["eligible_sampled"] = self.sampled
        return {"counts": counts, "warnings": self.warnings()}
