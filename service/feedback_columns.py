"""The columns of the feedback log: those of the log format, with the features that served models read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
from msgspec import structs

from contracts.encoding import Encoder
from contracts.rows import column_types
from contracts.schema import Feature
from service.releases import LoadedRelease

TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class LogColumns:
    """What one file of ``requests/`` and its file of ``candidates/`` hold; only grows from file to file.

    Args:
        query: Type of each column of query features.
        pair: Type of each column of pair features.
        tasks: Each has a label, empty until outcomes tell, a light and a teacher logit.
    """

    query: Mapping[str, pa.DataType] = field(default_factory=dict)
    pair: Mapping[str, pa.DataType] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()

    def including(self, other: "LogColumns") -> "LogColumns":
        """The columns of both; this very object where the other's are among them."""
        query, pair, tasks = ({**self.query}, {**self.pair}, dict.fromkeys(self.tasks))
        for known, new in ((query, other.query), (pair, other.pair), (tasks, dict.fromkeys(other.tasks))):
            known.update({name: value for name, value in new.items() if name not in known})
        merged = LogColumns(query, pair, tuple(tasks))
        return self if merged == self else merged

    def conflicts(self, other: "LogColumns") -> list[str]:
        """Names of columns that have another type there; their values cannot be logged."""
        pairs = ((self.query, other.query), (self.pair, other.pair))
        return [name for mine, theirs in pairs for name in mine if name in theirs and mine[name] != theirs[name]]

    @cached_property
    def requests(self) -> pa.Schema:
        """Of ``requests/``."""
        return pa.schema(
            {
                "request_id": pa.string(),
                "event_time": TIME,
                "scenario": pa.string(),
                **self.query,
                "labels_as_of": TIME,
                "release": pa.string(),
                "ads_as_of": TIME,
            }
        )

    @cached_property
    def candidates(self) -> pa.Schema:
        """Of ``candidates/``."""
        return pa.schema(
            {
                "request_id": pa.string(),
                "ad_id": pa.string(),
                "stage": pa.string(),
                "bid": pa.float32(),
                "objective": pa.string(),
                **self.pair,
                **{f"label_{task}": pa.int8() for task in self.tasks},
                "explore_propensity": pa.float32(),
                **{f"light_{task}": pa.float32() for task in self.tasks},
                **{f"teacher_{task}": pa.float32() for task in self.tasks},
                "teacher_version": pa.string(),
            }
        )


@dataclass(frozen=True, kw_only=True)
class ServedFeatures:
    """What the models of one release read from a request.

    ``query`` are features by name: of a history, all fields that some model reads and as many events as the one that
    reads most. ``pair_encoder`` is the heavy ranker's, where it reads pair features.
    """

    query: dict[str, Feature]
    pair_encoder: Encoder | None
    columns: LogColumns

    @classmethod
    def of(cls, loaded: LoadedRelease) -> "ServedFeatures":
        """Those of a release."""
        query, tasks, pair_encoder = loaded.schema.side_features("query"), loaded.tasks, None
        if loaded.heavy is not None:
            query = merged_features(query, loaded.heavy.schema.side_features("query"))
            tasks, pair_encoder = (*tasks, *loaded.heavy.tasks), loaded.heavy.encoders.pair_encoder
        columns = LogColumns(
            column_types(query),
            column_types(pair_encoder.features) if pair_encoder else {},
            tuple(dict.fromkeys(tasks)),
        )
        return cls(query=query, pair_encoder=pair_encoder, columns=columns)


def merged_features(first: Mapping[str, Feature], second: Mapping[str, Feature]) -> dict[str, Feature]:
    """The features of both; where both have a history it has the fields of both and the greater length."""
    merged = dict(first)
    for name, feature in second.items():
        known = merged.get(name)
        if known is not None and known.kind == feature.kind == "sequence":
            feature = structs.replace(
                feature,
                max_length=max(known.max_length or 0, feature.max_length or 0),
                fields={**(known.fields or {}), **(feature.fields or {})},
            )
        merged[name] = feature
    return merged
