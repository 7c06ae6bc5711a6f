"""The pairs of a log: which request and which ad row each belongs to, and what is known of it.

Shapes: B pairs of a slice, T tasks, A ad rows in use.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.encoding import Coverage, Encoder
from contracts.errors import InputError, LogError
from contracts.records import REQUIRED_COLUMNS, STAGES, LogPaths, plain_text
from contracts.schema import FeatureSchema
from contracts.timeline import AdsTimeline
from modeling.array_files import ArrayWriter
from modeling.log_outcomes import Outcomes
from modeling.log_requests import Requests
from modeling.log_scan import dataset_columns, scan
from modeling.log_values import codes, numbers, objective_codes


@dataclass(frozen=True, kw_only=True)
class PairFilter:
    """Which pairs are read.

    Args:
        stages: Furthest stages; None reads all.
        teacher: Only pairs with teacher logits of every task, all of one ``teacher_version``.
        labels: Only pairs whose first task has a label.
    """

    stages: tuple[str, ...] | None = None
    teacher: bool = False
    labels: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(set(self.stages or ()) - set(STAGES))
        if unknown:
            raise InputError(f"stages: expected some of {', '.join(STAGES)}, got {unknown[0]!r}")


@dataclass(frozen=True)
class Pairs:
    """What later stages need of the pairs; the rest is on disk.

    Args:
        used_ads: int64 [A], positions of the ad rows in use, ascending.
        teacher_version: Of the logits; None where no teacher was asked for.
        dropped: Pairs left out, by reason.
        coverage: Of the pair side; None where the schema has none.
    """

    used_ads: np.ndarray
    teacher_version: str | None
    dropped: dict[str, int]
    coverage: Coverage | None


class PairReader:
    """Reads pairs slice by slice: filters them, joins the ad row as of the request and the outcome, and encodes.

    Args:
        schema: A fitted schema.
        log: Paths of the log.
        requests: Those that were read; pairs of others are left out.
        timeline: Of ``ads/``.
        pair_filter: Which pairs are read.

    Raises:
        LogError: A column that the schema or the filter needs is absent.
    """

    def __init__(
        self, schema: FeatureSchema, log: LogPaths, requests: Requests, timeline: AdsTimeline, pair_filter: PairFilter
    ) -> None:
        self._schema, self._path, self._filter = schema, log.candidates, pair_filter
        self._requests, self._timeline = requests, timeline
        self._encoder = Encoder(schema, "pair") if schema.side_features("pair") else None
        self._outcomes = Outcomes(schema, log.outcomes, requests, timeline) if log.outcomes else None
        self._teacher_versions: set[str] = set()
        self._dropped: Counter[str] = Counter()
        self._weights = _Weights(log.candidates)
        self._coverage = Coverage()
        self._check_columns(
            dataset_columns(log.candidates), dataset_columns(log.outcomes) if log.outcomes else frozenset()
        )

    def write(self, directory: Path) -> Pairs:
        """Read all pairs to files of ``directory``, one a field, rows in reading order."""
        used_ads = np.zeros(0, np.int64)
        with ArrayWriter(directory) as writer:
            required = REQUIRED_COLUMNS["candidates"]
            pairs = scan(
                self._path,
                self._columns(),
                required=required,
                title="Encoding candidates",
                filled=("request_id", "ad_id"),
            )
            for start, table in pairs:
                fields = self._read(start, table)
                used_ads = np.union1d(used_ads, fields["pair_ad_position"])
                for name, rows in fields.items():
                    writer.append(name, rows)
        self._weights.check()
        version = self._teacher_versions.pop() if self._teacher_versions else None
        return Pairs(used_ads, version, dict(self._dropped), self._coverage if self._encoder else None)

    def _check_columns(self, present: frozenset[str], in_outcomes: frozenset[str]) -> None:
        needed = {"teacher_version", *self._teacher_columns} if self._filter.teacher else set()
        lacking = sorted(needed - present)
        if lacking:
            raise LogError(
                f"{self._path}: column {lacking[0]} is missing, so nothing has a teacher: run `adsieve heavy score`"
            )
        if self._filter.labels and self._label_columns[0] not in present | in_outcomes:
            raise LogError(f"{self._path}: column {self._label_columns[0]} is missing, expected labels of the task")

    @property
    def _label_columns(self) -> list[str]:
        return [f"label_{task}" for task in self._schema.tasks]

    @property
    def _teacher_columns(self) -> list[str]:
        return [f"teacher_{task}" for task in self._schema.tasks]

    def _columns(self) -> set[str]:
        teacher = {"teacher_version", *self._teacher_columns} if self._filter.teacher else set()
        features = set(self._encoder.columns) if self._encoder else set()
        return {"bid", "objective", "sample_weight", *self._label_columns, *teacher, *features}

    def _read(self, start: int, table: pa.Table) -> dict[str, np.ndarray]:
        """The fields of the pairs that are kept among one slice."""
        request_row = self._requests.rows_of(table["request_id"])
        stage = self._stage(table, request_row)
        keep = self._keep({"request not read": request_row >= 0, "stage": self._stage_wanted(stage)})
        position = start + np.flatnonzero(keep)
        table, request_row, stage = table.filter(pa.array(keep)), request_row[keep], stage[keep]

        ad_position = self._timeline.rows_at(table["ad_id"], self._requests.join_time[request_row])
        labels, teacher = self._labels(table, request_row, ad_position), self._teacher(table)
        reasons = {"no ad row as of the request": ad_position >= 0}
        if self._filter.labels:
            reasons["no label"] = ~np.isnan(labels[:, 0])
        if self._filter.teacher:
            reasons["no teacher"] = ~np.isnan(teacher).any(axis=1)
        keep = self._keep(reasons)
        table = table.filter(pa.array(keep))
        self._note_teacher(table)
        fields = {
            "request_row": request_row[keep],
            "pair_ad_position": ad_position[keep].astype(np.int64),
            "pair_position": position[keep],
            "stage": stage[keep],
            "labels": labels[keep],
            "bid": numbers(table, "bid", source=self._path),
            "objective": objective_codes(table, self._schema, source=self._path),
            "weight": self._weights.read(table),
        }
        if self._filter.teacher:
            fields["teacher"] = teacher[keep]
        return fields | self._encode(table)

    def _keep(self, reasons: dict[str, np.ndarray]) -> np.ndarray:
        """bool [B], rows that pass every mask; a row that fails counts under the first that it fails."""
        keep = np.ones(len(next(iter(reasons.values()))), bool)
        for reason, passes in reasons.items():
            self._dropped[reason] += int((keep & ~passes).sum())
            keep &= passes
        return keep

    def _stage_wanted(self, stage: np.ndarray) -> np.ndarray:
        wanted = STAGES if self._filter.stages is None else self._filter.stages
        return np.isin(stage, [STAGES.index(name) for name in wanted])

    def _stage(self, table: pa.Table, request_row: np.ndarray) -> np.ndarray:
        """int8 [B], furthest stages; an ad whose outcome says that it was shown is a winner."""
        stage = codes(table, "stage", STAGES, source=self._path)
        if (stage < 0).any():
            raise LogError(f"{self._path}: column stage is missing in a row, expected one of {', '.join(STAGES)}")
        if self._outcomes is None:
            return stage
        ad_position = self._timeline.rows_at(table["ad_id"], self._requests.join_time_of(request_row))
        shown = self._outcomes.shown[self._outcomes.rows_of(request_row, ad_position)]
        return np.where(shown, np.int8(STAGES.index("winner")), stage)

    def _labels(self, table: pa.Table, request_row: np.ndarray, ad_position: np.ndarray) -> np.ndarray:
        """float32 [B, T] in [0, 1]; the outcome where the candidate has none, NaN where neither knows."""
        labels = np.column_stack([numbers(table, column, source=self._path) for column in self._label_columns])
        if self._outcomes is not None:
            outcome = self._outcomes.rows_of(request_row, ad_position)
            labels = np.where(np.isnan(labels), self._outcomes.labels[outcome], labels)
        outside = (labels < 0) | (labels > 1)
        if outside.any():
            column = self._label_columns[int(outside.any(axis=0).argmax())]
            raise LogError(
                f"{self._path}: column {column} holds {labels[outside][0]}, expected a value in [0, 1] or null"
            )
        return labels

    def _teacher(self, table: pa.Table) -> np.ndarray:
        """float32 [B, T] logits, NaN where there is none."""
        return np.column_stack([numbers(table, column, source=self._path) for column in self._teacher_columns])

    def _note_teacher(self, table: pa.Table) -> None:
        if not self._filter.teacher:
            return
        versions = plain_text(table["teacher_version"])
        if versions.null_count:
            raise LogError(f"{self._path}: column teacher_version is missing in a row that has teacher logits")
        self._teacher_versions.update(pc.unique(versions).to_pylist())
        if len(self._teacher_versions) > 1:
            mixed = ", ".join(sorted(self._teacher_versions))
            raise LogError(f"{self._path}: rows of several teachers never train together, teacher_version is {mixed}")

    def _encode(self, table: pa.Table) -> dict[str, np.ndarray]:
        if self._encoder is None:
            return {}
        found = self._encoder.encode(table, num_rows=len(table), source=self._path)
        self._coverage = self._coverage.merge(found.coverage)
        return {"pair.ids": found.encoded.ids, "pair.floats": found.encoded.floats}


class _Weights:
    """``sample_weight`` of the pairs that are kept, and what is wrong with it over all of them.

    Args:
        source: Of the column, for messages.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._counts: Counter[str] = Counter()
        self._first: dict[str, float] = {}
        self._total, self._pairs = 0.0, 0

    def read(self, table: pa.Table) -> np.ndarray:
        """float32 [B], 1 where the row says nothing."""
        weights = numbers(table, "sample_weight", source=self._source)
        missing = np.isnan(weights)
        if "sample_weight" in table.schema.names:
            missing = np.asarray(table["sample_weight"].is_null())
        weights = np.where(missing, np.float32(1), weights)
        for kind, wrong in (("negative", weights < 0), ("NaN", np.isnan(weights))):
            if wrong.any():
                self._counts[kind] += int(wrong.sum())
                self._first.setdefault(kind, float(weights[wrong][0]))
        self._total, self._pairs = self._total + float(np.nansum(weights)), self._pairs + len(weights)
        return weights

    def check(self) -> None:
        """Refuse what cannot weigh anything.

        Raises:
            LogError: Some weight is negative or NaN, or all are 0; with counts.
        """
        for kind, count in self._counts.items():
            raise LogError(
                f"{self._source}: column sample_weight is {kind} in {count:,} of {self._pairs:,} pairs, the first is "
                f"{self._first[kind]}, expected 0 or more, or null for 1"
            )
        if self._pairs and not self._total > 0:
            raise LogError(
                f"{self._source}: column sample_weight is 0 in all {self._pairs:,} pairs that are read, expected a "
                "weight above 0 in some"
            )
