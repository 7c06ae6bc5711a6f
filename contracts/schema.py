"""The feature schema: what a model predicts, which features it reads, and how their raw values become ids and floats.

One YAML file for a model. A :class:`FeatureSchema` that exists is consistent: its cross-field rules
(contracts/schema_rules.py) are checked whenever one is built. It may still lack fitted state (means, edges,
vocabularies); see :meth:`FeatureSchema.require_fitted`.
"""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from contracts.config import dump_yaml, load_config
from contracts.errors import ConfigError
from contracts.schema_rules import schema_faults

Side = Literal["query", "ad", "pair"]
Kind = Literal["categorical", "dense", "multi_categorical", "embedding", "sequence"]
Transform = Literal["none", "log1p", "standardize", "log1p_standardize", "quantile"]
Pooling = Literal["mean", "sum"]

SIDES: tuple[Side, ...] = ("query", "ad", "pair")
PADDING, MISSING, OUT_OF_VOCABULARY = 0, 1, 2
NUM_RESERVED = 3  # ids 0, 1 and 2 of every table

DEFAULT_AGE_DIM = 8
DEFAULT_AGE_BUCKETS = 32
DEFAULT_QUANTILES = 64


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An embedding table; ids 0, 1, 2 are padding, missing and out of vocabulary.

    Exactly one of the last three is given.

    Args:
        dim: Width of an embedding.
        buckets: Rows of a hashed table, the three reserved ones included: ``id = 3 + xxh64(value) % (buckets - 3)``.
        vocabulary: The known values; the first has id 3, anything else is id 2.
        max_values: A vocabulary still to be fitted: the most frequent values, at most so many.
    """

    dim: int
    buckets: int | None = None
    vocabulary: tuple[str, ...] | None = None
    max_values: int | None = None

    @property
    def num_rows(self) -> int:
        """Rows of the weight matrix; ConfigError while the vocabulary is not fitted."""
        if self.buckets is not None:
            return self.buckets
        if self.vocabulary is None:
            raise ConfigError("a table with max_values has no rows before it is fitted: run `adsieve schema fit`")
        return NUM_RESERVED + len(self.vocabulary)


class SequenceField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One column of a behaviour sequence, one value an event.

    Args:
        kind: ``categorical`` looks up ``table``; ``age`` buckets the time from the event to the request, by geometric
            edges from one minute to one year, in a table of its own named ``<sequence>.<field>``.
        table: Name of a table, for ``categorical``.
        buckets: Rows of the age table, the three reserved ones included; 32 unless given.
        dim: Width of the age table; 8 unless given.
    """

    kind: Literal["categorical", "age"]
    table: str | None = None
    buckets: int | None = None
    dim: int | None = None


class Fitted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What ``adsieve schema fit`` found for one dense feature.

    Args:
        mean: Mean over present values, after log1p where the transform has it.
        std: Standard deviation of the same, population form; 1 for a constant feature.
        edges: Strictly increasing quantile edges of the raw value.
    """

    mean: float | None = None
    std: float | None = None
    edges: tuple[float, ...] | None = None


class Feature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One feature of one side.

    Args:
        side: Where the value comes from: the request, the ad, or the pair of both (heavy ranker only).
        kind: How it is encoded.
        table: Embedding table of a categorical or multi_categorical feature.
        transform: Of a dense value; ``log1p`` is ``sign(x) log(1 + |x|)``, ``quantile`` the interpolated rank in -1..1.
        default: Dense value that stands in for a missing one, before the transform; null means the fitted mean, or the
            middle for ``quantile``.
        max_length: Values kept of a multi_categorical feature (the first) or a sequence (the most recent).
        pooling: Of a multi_categorical feature: ``sum`` lets the number of values scale the result, ``mean`` does not.
        length: Width of an embedding feature.
        buckets: Number of quantile intervals; 64 unless given.
        fields: Columns of a sequence.
        fitted: State of a dense feature, written by ``adsieve schema fit``.
        label: Free text for people; not part of the fingerprint.
    """

    side: Side
    kind: Kind
    table: str | None = None
    transform: Transform = "none"
    default: float | None = None
    max_length: int | None = None
    pooling: Pooling = "mean"
    length: int | None = None
    buckets: int | None = None
    fields: dict[str, SequenceField] | None = None
    fitted: Fitted | None = None
    label: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the fitted values that this feature cannot be encoded without."""
        if self.kind != "dense":
            return ()
        if self.transform == "quantile":
            return ("edges",)
        if self.transform in ("standardize", "log1p_standardize"):
            return ("mean", "std")
        return ("mean",) if self.default is None else ()

    @property
    def is_fitted(self) -> bool:
        return all(getattr(self.fitted, name, None) is not None for name in self.needs)


class FeatureSchema(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, dict=True
):
    """All features of one model, its tables, tasks and objectives.

    Args:
        version: Of this file format.
        tasks: What is predicted, a chain: each is possible only after the one before.
        objectives: What a bid pays for: objective name to task, or null for the impression itself.
        tables: Embedding tables by name; features that name the same table share its weights.
        features: By name.

    Raises:
        ConfigError: Rules across fields do not hold; one line a fault, each with path, value and what was expected.
    """

    version: Literal[1] = 1
    tasks: tuple[str, ...]
    objectives: dict[str, str | None]
    tables: dict[str, Table] = {}
    features: dict[str, Feature]

    def __post_init__(self) -> None:
        faults = schema_faults(self)
        if faults:
            raise ConfigError("\n".join(faults))

    def side_features(self, side: Side) -> dict[str, Feature]:
        """The features of one side, sorted by name."""
        return {name: self.features[name] for name in sorted(self.features) if self.features[name].side == side}

    def all_tables(self) -> dict[str, Table]:
        """The tables written in the schema and the implied ones of age fields, sorted by name."""
        tables = dict(self.tables)
        for name, feature in self.features.items():
            for field_name, field in (feature.fields or {}).items():
                if field.kind == "age":
                    tables[f"{name}.{field_name}"] = age_table(field)
        return dict(sorted(tables.items()))

    @property
    def objective_names(self) -> tuple[str, ...]:
        """Objectives in a fixed order: the position is the code that arrays of objectives store."""
        return tuple(sorted(self.objectives))

    @property
    def unfitted(self) -> tuple[str, ...]:
        """Paths in the file that still need ``adsieve schema fit``."""
        tables = (f"tables.{name}" for name, table in sorted(self.tables.items()) if table.max_values is not None)
        features = (f"features.{name}" for name, feature in sorted(self.features.items()) if not feature.is_fitted)
        return (*tables, *features)

    @property
    def is_fitted(self) -> bool:
        return not self.unfitted

    def require_fitted(self) -> None:
        """Raise ConfigError where means, edges or vocabularies are missing."""
        if not self.is_fitted:
            raise ConfigError(
                f"schema is not fitted, {', '.join(self.unfitted)}: run `adsieve schema fit` on the training log"
            )

    def feature_fingerprints(self) -> dict[str, str]:
        """A SHA-256 a feature, over everything that decides its ids, floats and weights; sorted by name."""
        return dict(self._fingerprints)

    def side_fingerprint(self, side: Side) -> str:
        """SHA-256 over the features of one side: two models with the same may read the same encoded rows."""
        own = {name: self._fingerprints[name] for name in self.side_features(side)}
        return _digest({"version": self.version, "side": side, "features": own})

    def fingerprint(self) -> str:
        """SHA-256 over the whole schema; neither the order of mappings nor comments and labels change it."""
        content = {
            "version": self.version,
            "tasks": self.tasks,
            "objectives": self.objectives,
            "tables": {name: _content(table) for name, table in self.tables.items()},
            "features": self._fingerprints,
        }
        return _digest(content)

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        return {name: _digest(self._feature_content(name)) for name in sorted(self.features)}

    def _feature_content(self, name: str) -> dict[str, Any]:
        feature = self.features[name]
        used = {feature.table} | {field.table for field in (feature.fields or {}).values()}
        content = _content(feature)
        content.pop("label", None)
        for field_name, field in (feature.fields or {}).items():
            if field.kind == "age":
                content["fields"][field_name] = {"kind": "age", "table": _content(age_table(field))}
        return {
            "name": name,
            "feature": content,
            "tables": {table: _content(self.tables[table]) for table in used if table},
        }


def age_table(field: SequenceField) -> Table:
    """The implied table of an age field."""
    return Table(dim=field.dim or DEFAULT_AGE_DIM, buckets=field.buckets or DEFAULT_AGE_BUCKETS)


def load_schema(path: str | Path, *, fitted: bool = False) -> FeatureSchema:
    """Read a schema file, with ``fitted`` one that a model can be trained with.

    Raises:
        ConfigError: Names the file, the path in it, the value and what was expected; or what is not fitted yet.
    """
    schema = load_config(path, FeatureSchema)
    if fitted:
        try:
            schema.require_fitted()
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return schema


def save_schema(schema: FeatureSchema, path: str | Path) -> None:
    """Write a schema, its fitted state included, so that :func:`load_schema` gives an equal one."""
    dump_yaml({"version": schema.version, **msgspec.to_builtins(schema)}, path)


def _content(part: msgspec.Struct) -> dict[str, Any]:
    return msgspec.to_builtins(part)


def _digest(content: object) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
