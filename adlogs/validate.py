"""Checks a log against a feature schema: every fault with its file, row group, column and rule.

Files are read row group by row group, a bounded slice of rows at a time. What is kept of all rows is the ids of
requests and ads, the moments of both, and one number an outcome.
"""

from collections.abc import Callable, Iterator

from adlogs.faults import FaultLog, ValidationReport
from adlogs.log_slices import Finding, LogDataset, LogSlice
from adlogs.rules_ads import AdRules
from adlogs.rules_candidates import CandidateRules
from adlogs.rules_columns import ExpectedColumns, expected_columns, inspect_dataset
from adlogs.rules_features import FeatureRules
from adlogs.rules_outcomes import OutcomeRules, TruthRules
from adlogs.rules_pairs import KnownIds
from adlogs.rules_requests import RequestRules
from contracts.records import LogPaths
from contracts.schema import FeatureSchema


def validate_log(log: LogPaths, schema: FeatureSchema) -> ValidationReport:
    """Check all datasets of a log, the optional ones where they are.

    Args:
        log: Its datasets.
        schema: Fitted or not; names the features, tasks and objectives that the log must hold.

    Returns:
        The faults, grouped by row group, column and rule, and how much was read. In a column of the wrong type, and in
        what cannot be read, nothing further is checked.

    Raises:
        LogError: A dataset has no file at all.
    """
    return _Validation(log, schema).run()


class _Validation:
    """One run: the datasets' columns first, then their rows, requests and ads before what refers to them."""

    def __init__(self, log: LogPaths, schema: FeatureSchema) -> None:
        self._schema = schema
        self._faults = FaultLog()
        self._features = {
            "requests": FeatureRules(schema, "query"),
            "ads": FeatureRules(schema, "ad"),
            "candidates": FeatureRules(schema, "pair"),
        }
        self._expected: dict[str, ExpectedColumns] = {}
        self._datasets: dict[str, LogDataset] = {}
        for name in ("requests", "ads", "outcomes", "candidates", "truth"):
            path = getattr(log, name)
            if path is not None:
                self._inspect(name, path)

    def run(self) -> ValidationReport:
        requests = RequestRules(self._features["requests"])
        self._check("requests", requests.check)
        ads = AdRules(self._schema, self._features["ads"])
        self._check("ads", ads.check)
        ads.finish(self._faults)
        known = KnownIds(
            requests.codes,
            ads.codes,
            ads_time=requests.ads_time(),
            first_valid=ads.first_valid() if self._knows("ads", "ad_id", "valid_from") else None,
            all_requests=self._knows("requests", "request_id"),
            all_ads=self._knows("ads", "ad_id"),
        )
        self._check("candidates", CandidateRules(self._schema, self._features["candidates"], known).check)
        outcomes = OutcomeRules(self._schema, known)
        self._check("outcomes", outcomes.check)
        outcomes.finish(self._faults)
        self._check("truth", TruthRules(self._schema).check)
        return ValidationReport(
            faults=self._faults.faults, counts={name: dataset.count for name, dataset in self._datasets.items()}
        )

    def _inspect(self, name: str, path: str) -> None:
        in_outcomes = self._datasets["outcomes"].column_names if "outcomes" in self._datasets else frozenset()
        expected = expected_columns(name, self._schema, self._features.get(name), elsewhere=in_outcomes)
        self._expected[name] = expected
        self._datasets[name] = inspect_dataset(name, path, expected, self._faults)

    def _check(self, name: str, check: Callable[[LogSlice], Iterator[Finding]]) -> None:
        if name in self._datasets:
            for rows in self._datasets[name].slices(self._expected[name].names, self._faults):
                for finding in check(rows):
                    rows.note(finding, self._faults)

    def _knows(self, name: str, *columns: str) -> bool:
        return all(self._datasets[name].knows(column) for column in columns)
