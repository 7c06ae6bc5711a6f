"""Rules of the rows of ``candidates/``: ids, order, stages, labels, weights and teacher scores.

Letters: B rows of a slice.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from adlogs.log_slices import Finding, LogSlice
from adlogs.rules_columns import null_findings
from adlogs.rules_features import FeatureRules
from adlogs.rules_pairs import KnownIds, RequestOrder
from adlogs.rules_values import (
    BAD_PROPENSITY,
    BAD_WEIGHT,
    NOT_FINITE_LOGIT,
    at_least_zero,
    bid_findings,
    is_share,
    label_findings,
    number_findings,
    objective_findings,
    unknown_text,
    unshown_findings,
)
from contracts.records import STAGES, plain_text
from contracts.schema import FeatureSchema

MIXED_TEACHERS = "is not {!r}, expected scores of one teacher series"
NO_TEACHER_VERSION = "is null although the row has teacher scores, expected the name of their series"


class CandidateRules:
    """Checks candidates slice by slice; of earlier rows, request ids and the last pairs are kept."""

    def __init__(self, schema: FeatureSchema, features: FeatureRules | None, known: KnownIds) -> None:
        self._tasks, self._objectives = schema.tasks, schema.objective_names
        self._features, self._known = features, known
        self._order = RequestOrder()
        self._teacher_version: str | None = None

    def check(self, rows: LogSlice) -> Iterator[Finding]:
        yield from null_findings(rows)
        yield from unknown_text(rows, "stage", STAGES, or_null="")
        yield from objective_findings(rows, self._objectives)
        yield from bid_findings(rows)
        yield from number_findings(rows, "sample_weight", BAD_WEIGHT, at_least_zero)
        yield from number_findings(rows, "explore_propensity", BAD_PROPENSITY, is_share)
        yield from self._label_findings(rows)
        yield from self._teacher_findings(rows)
        if self._features:
            yield from self._features.check(rows)
        pairs = self._known.codes(rows)
        yield from self._known.findings(pairs)
        yield from self._order.findings(pairs)

    def _label_findings(self, rows: LogSlice) -> Iterator[Finding]:
        stage = rows.get("stage")
        shown = None if stage is None else np.asarray(pc.equal(plain_text(stage), STAGES[-1]).fill_null(False))
        yield from label_findings(rows, self._tasks, shown)
        yield from unshown_findings(rows, "position", shown)

    def _teacher_findings(self, rows: LogSlice) -> Iterator[Finding]:
        scored = np.zeros(rows.num_rows, bool)
        for column in (f"{prefix}_{task}" for prefix in ("teacher", "light") for task in self._tasks):
            yield from number_findings(rows, column, NOT_FINITE_LOGIT, np.isfinite)
            if column in rows.columns and column.startswith("teacher_"):
                scored |= np.asarray(rows.columns[column].is_valid())
        versions = rows.get("teacher_version")
        if versions is None:
            return
        texts = plain_text(versions)
        yield Finding("teacher_version", NO_TEACHER_VERSION, scored & np.asarray(texts.is_null()))
        if self._is_feedback(rows):
            return  # written by whatever heavy ranker served, until `adsieve heavy score` gives all rows one teacher
        if self._teacher_version is None:
            self._teacher_version = next(iter(texts.drop_null().slice(0, 1).to_pylist()), None)
        if self._teacher_version is not None:
            other = pc.not_equal(texts, self._teacher_version).fill_null(False)
            yield Finding("teacher_version", MIXED_TEACHERS.format(self._teacher_version), np.asarray(other))

    def _is_feedback(self, rows: LogSlice) -> bool:
        """Whether a service wrote the rows: it alone tells the light logits."""
        return any(f"light_{task}" in rows.columns for task in self._tasks)
