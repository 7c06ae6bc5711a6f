"""Finds the fitted state of a schema in a log: means and deviations, quantile edges, vocabularies. One streaming pass.

What the schema already holds stays as it is. Missing values are left out; values are read as the encoder reads them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts import columns as raw
from contracts.dense import signed_log1p
from contracts.errors import ConfigError
from contracts.feature_encoders import NOT_FINITE
from contracts.hashing import hash_ids
from contracts.schema import DEFAULT_QUANTILES, Feature, FeatureSchema, Fitted, Side, Table

_SAMPLE = 200_000  # values of a feature that its quantiles are taken from
_ANY_BUCKETS = 2**31 - 1


def fit_schema(
    schema: FeatureSchema, batches: Iterable[Mapping[Side, pa.Table]], *, seed: int = 0, source: str = ""
) -> FeatureSchema:
    """Fit what ``schema.unfitted`` names.

    Args:
        schema: Possibly unfitted.
        batches: Slices of the log: raw columns by side, of which a batch may hold one alone.
        seed: Of the samples that quantiles are taken from.
        source: Dataset, for messages.

    Returns:
        The schema with means, edges and vocabularies written in; the same log in other slices gives the same
        vocabularies and, but for rounding, the same means.

    Raises:
        LogError: A column is absent, has the wrong type, or holds NaN or infinity.
        ConfigError: Something has no value to be fitted from.
    """
    fits = _feature_fits(schema, seed)
    counts = {name: Counter[str]() for name, table in schema.tables.items() if table.max_values is not None}
    readers = [
        *(_Reader(schema.features[name].side, name, fit.add) for name, fit in fits.items()),
        *_vocabulary_readers(schema, counts),
    ]
    for batch in batches:
        for reader in readers:
            if reader.side in batch:
                reader.read(batch[reader.side], source)
    features = {name: _with_fitted(name, feature, fits.get(name)) for name, feature in schema.features.items()}
    tables = {name: _with_vocabulary(name, table, counts.get(name)) for name, table in schema.tables.items()}
    return msgspec.structs.replace(schema, features=features, tables=tables)


class _Fit(Protocol):
    def add(self, array: pa.Array) -> None: ...
    def fitted(self, name: str) -> Fitted: ...


@dataclass
class _Moments:
    """Running count, mean and sum of squared deviations (Chan et al. 1983), after log1p where the transform has it."""

    is_log: bool
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, array: pa.Array) -> None:
        values = _present_numbers(array)
        if not len(values):
            return
        values = signed_log1p(values) if self.is_log else values
        mean, total = float(values.mean()), self.count + len(values)
        shift = mean - self.mean
        self.squares += float(((values - mean) ** 2).sum()) + shift**2 * self.count * len(values) / total
        self.mean += shift * len(values) / total
        self.count = total

    def fitted(self, name: str) -> Fitted:
        _require_values(f"features.{name}", self.count)
        std = (self.squares / self.count) ** 0.5
        is_constant = std <= 1e-9 * max(1.0, abs(self.mean))
        return Fitted(mean=self.mean, std=1.0 if is_constant else std)


@dataclass
class _Quantiles:
    """A uniform sample without replacement: the values with the smallest random keys."""

    buckets: int
    random: np.random.Generator
    keys: np.ndarray = field(default_factory=lambda: np.zeros(0))
    values: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def add(self, array: pa.Array) -> None:
        new = _present_numbers(array)
        self.keys = np.concatenate([self.keys, self.random.random(len(new))])
        self.values = np.concatenate([self.values, new])
        if len(self.keys) > _SAMPLE:
            kept = np.argpartition(self.keys, _SAMPLE)[:_SAMPLE]
            self.keys, self.values = self.keys[kept], self.values[kept]

    def fitted(self, name: str) -> Fitted:
        _require_values(f"features.{name}", len(self.values))
        edges = np.unique(np.quantile(self.values, np.linspace(0.0, 1.0, self.buckets + 1)))
        return Fitted(edges=tuple(edges.tolist()))


@dataclass(frozen=True)
class _Reader:
    """Hands one column of one side's batches to what is fitted from it."""

    side: Side
    column: str
    add: Callable[[pa.Array], None]

    def read(self, table: pa.Table, source: str) -> None:
        if self.column not in table.schema.names:
            raise raw.log_error(source, self.column, f"is missing, expected for side {self.side!r} of the schema")
        try:
            for chunk in table.column(self.column).chunks:
                self.add(chunk)
        except raw.WrongTypeError as error:
            raise raw.log_error(source, self.column, str(error)) from None
        except _NotFiniteError:
            raise raw.log_error(source, self.column, NOT_FINITE) from None


class _NotFiniteError(Exception):
    """NaN or infinity among the values of a column; the reader knows which column."""


def _feature_fits(schema: FeatureSchema, seed: int) -> dict[str, _Fit]:
    unfitted = {name: feature for name, feature in schema.features.items() if not feature.is_fitted}
    return {name: _fit_of(name, feature, seed) for name, feature in sorted(unfitted.items())}


def _fit_of(name: str, feature: Feature, seed: int) -> _Fit:
    if feature.transform == "quantile":
        # Seeded by the name, so that another feature in the schema changes nothing here.
        own_seed = int(hash_ids([name], _ANY_BUCKETS)[0])
        return _Quantiles(feature.buckets or DEFAULT_QUANTILES, np.random.default_rng([seed, own_seed]))
    return _Moments(is_log="log1p" in feature.transform)


def _vocabulary_readers(schema: FeatureSchema, counts: dict[str, Counter[str]]) -> list[_Reader]:
    readers = []
    for name, feature in schema.features.items():
        columns = {name: feature.table}
        columns |= {f"{name}.{field_name}": part.table for field_name, part in (feature.fields or {}).items()}
        is_list = feature.kind != "categorical"
        for column, table in columns.items():
            if table in counts:
                readers.append(_Reader(feature.side, column, _counting(counts[table], is_list)))
    return readers


def _counting(counter: Counter[str], is_list: bool) -> Callable[[pa.Array], None]:
    def add(array: pa.Array) -> None:
        values = raw.lists(array, raw.TEXT_TYPES).present_values() if is_list else array
        if pa.types.is_null(values.type):
            return
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        found = pc.value_counts(values.drop_null())
        texts = raw.texts(found.field("values"))
        counter.update(dict(zip(texts, found.field("counts").to_pylist(), strict=True)))

    return add


def _present_numbers(array: pa.Array) -> np.ndarray:
    values = raw.numbers(array.drop_null())
    if not np.isfinite(values).all():
        raise _NotFiniteError
    return values


def _with_fitted(name: str, feature: Feature, fit: _Fit | None) -> Feature:
    return feature if fit is None else msgspec.structs.replace(feature, fitted=fit.fitted(name))


def _with_vocabulary(name: str, table: Table, counter: Counter[str] | None) -> Table:
    """The most frequent values, ties in the order of their text, so that the order of rows does not matter."""
    if counter is None:
        return table
    _require_values(f"tables.{name}", len(counter))
    ranked = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return Table(dim=table.dim, vocabulary=tuple(text for text, _ in ranked[: table.max_values]))


def _require_values(path: str, count: int) -> None:
    if not count:
        raise ConfigError(f"{path}: no value in the log, expected at least one to fit from, or a fitted state by hand")
