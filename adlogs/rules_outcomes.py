"""Rules of the rows of ``outcomes/`` and ``truth/``, the datasets that a log may lack.

Letters: B rows of a slice.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from adlogs.faults import FaultLog
from adlogs.log_slices import Finding, LogSlice
from adlogs.rules_columns import null_findings
from adlogs.rules_pairs import REPEATED_PAIR, KnownIds, RepeatedRows
from adlogs.rules_values import label_findings, number_findings, unshown_findings
from contracts.schema import FeatureSchema

NOT_PROBABILITY = "is not a probability, expected a number in 0..1 or null"


class OutcomeRules:
    """Checks outcomes slice by slice, in any order of rows, and keeps their pairs: one outcome a pair."""

    def __init__(self, schema: FeatureSchema, known: KnownIds) -> None:
        self._tasks, self._known = schema.tasks, known
        self._pairs = RepeatedRows()

    def check(self, rows: LogSlice) -> Iterator[Finding]:
        yield from null_findings(rows)
        array = rows.get("shown")
        shown = None if array is None else np.asarray(pc.fill_null(array, False))
        yield from label_findings(rows, self._tasks, shown)
        yield from unshown_findings(rows, "position", shown)
        pairs = self._known.codes(rows)
        yield from self._known.findings(pairs)
        if pairs.keys is not None:
            self._pairs.add(rows.place, pairs.keys)

    def finish(self, faults: FaultLog) -> None:
        """Note the pairs that come again."""
        self._pairs.note(faults, "ad_id", REPEATED_PAIR, self._known.pair)


class TruthRules:
    """Checks the probabilities of ``truth/``."""

    def __init__(self, schema: FeatureSchema) -> None:
        self._columns = tuple(f"true_{task}" for task in schema.tasks)

    def check(self, rows: LogSlice) -> Iterator[Finding]:
        for column in self._columns:
            yield from number_findings(rows, column, NOT_PROBABILITY, lambda values: (values >= 0) & (values <= 1))
