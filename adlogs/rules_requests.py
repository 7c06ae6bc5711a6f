"""Rules of the rows of ``requests/``, and what the rules of other datasets need to know of them.

Letters: B rows of a slice.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from adlogs.id_codes import IdCodes, repeats
from adlogs.log_slices import Finding, LogSlice
from adlogs.rules_columns import null_findings
from adlogs.rules_features import FeatureRules
from adlogs.rules_values import NEVER, instants, scenario_findings

REPEATED_REQUEST = "is the request_id of an earlier row, expected one row a request"


class RequestRules:
    """Checks requests slice by slice, and keeps their ids and the moments whose ads they saw."""

    def __init__(self, features: FeatureRules) -> None:
        self._features = features
        self._times = [np.zeros(0, np.int64)]
        self.codes = IdCodes()

    def ads_time(self) -> np.ndarray:
        """int64 [requests], by code: ``ads_as_of``, else ``event_time``; never where neither is known."""
        return np.concatenate(self._times)

    def check(self, rows: LogSlice) -> Iterator[Finding]:
        yield from null_findings(rows)
        yield from scenario_findings(rows)
        event_time = instants(rows, "event_time", np.full(rows.num_rows, NEVER))
        yield from self._features.check(rows, event_time)
        ids = rows.get("request_id")
        if ids is not None:
            yield from self._add(ids, instants(rows, "ads_as_of", event_time))

    def _add(self, ids: pa.Array, ads_time: np.ndarray) -> Iterator[Finding]:
        num_known = len(self.codes)
        codes = self.codes.add(ids)
        is_new = (codes >= num_known) & ~repeats(codes)
        self._times.append(ads_time[is_new])  # new codes rise by one from row to row
        yield Finding("request_id", REPEATED_REQUEST, (codes >= 0) & ~is_new)
