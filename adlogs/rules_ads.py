"""Rules of the rows of ``ads/``, and what the rules of pairs need to know of them.

Letters: B rows of a slice.
"""

from collections.abc import Iterator

import numpy as np

from adlogs.faults import FaultLog
from adlogs.id_codes import IdCodes
from adlogs.log_slices import Finding, LogSlice
from adlogs.rules_columns import null_findings
from adlogs.rules_features import FeatureRules
from adlogs.rules_pairs import RepeatedRows
from adlogs.rules_values import (
    NEVER,
    bid_findings,
    instants,
    objective_findings,
    scenario_findings,
    unknown_text,
)
from contracts.records import STATUSES
from contracts.schema import FeatureSchema

TIED = "is the valid_from of another row of the same ad, expected one row an ad and moment"


class AdRules:
    """Checks ads slice by slice, and keeps each row's ad and moment: ties may stand in different files."""

    def __init__(self, schema: FeatureSchema, features: FeatureRules) -> None:
        self._objectives, self._features = schema.objective_names, features
        self._moments = RepeatedRows()
        self.codes = IdCodes()

    def first_valid(self) -> np.ndarray:
        """int64 [ads], by code: when the first row of each ad begins, microseconds UTC."""
        first = np.full(len(self.codes), NEVER)
        for codes, times in [self._moments.keys()] if len(first) else []:
            np.minimum.at(first, codes[codes >= 0], times[codes >= 0])
        return first

    def check(self, rows: LogSlice) -> Iterator[Finding]:
        yield from null_findings(rows)
        yield from scenario_findings(rows)
        yield from unknown_text(rows, "status", STATUSES)
        yield from objective_findings(rows, self._objectives)
        yield from bid_findings(rows)
        yield from self._features.check(rows)
        self._note_moments(rows)

    def finish(self, faults: FaultLog) -> None:
        """Note the ties."""

        def example(code: int, micros: int) -> object:
            return {"ad_id": self.codes.text(code), "valid_from": f"{np.datetime64(micros, 'us')}Z"}

        self._moments.note(faults, "valid_from", TIED, example)

    def _note_moments(self, rows: LogSlice) -> None:
        ids = rows.get("ad_id")
        if ids is not None:
            codes = self.codes.add(ids)
            times = instants(rows, "valid_from", np.full(rows.num_rows, NEVER))
            self._moments.add(rows.place, np.where(times == NEVER, -1, codes), times)
