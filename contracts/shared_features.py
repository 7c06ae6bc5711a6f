"""Features that several models have in common, encoded once: what one encoder wrote of a column, the next one copies.

Two features are alike where the same raw values give the same ids and floats; the width of a table, which the encoder
never sees, and the pooling may differ. Sequences are left out: they are encoded for one model alone, once a request.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from contracts.layout import SideLayout
from contracts.rows_in_work import RowsInWork
from contracts.schema import FeatureSchema

if TYPE_CHECKING:
    from contracts.encoding import EncodedBatch

Key = tuple[str, bytes]


@dataclass(frozen=True)
class Place:
    """A feature, what decides its values, and its columns of ids and floats, of which one slice is empty."""

    key: Key
    ids: slice
    floats: slice


@dataclass(frozen=True)
class _Kept:
    """What was written of one feature: where, in the ids and floats of all features of these rows, and what was found.

    The place is as the encoder that wrote it has it; ids and floats are [B, num_ids] and [B, num_floats].
    """

    place: Place
    ids: np.ndarray
    floats: np.ndarray
    missing: int | None
    out_of_vocabulary: int | None
    faults: list[tuple[str, str, np.ndarray]]


@dataclass
class SharedFeatures:
    """What the encoders of several models, one after another, wrote of the same rows; for one thread.

    Args:
        batches: Whole results, by the features that decide them: a model of the same features is given the same arrays.
    """

    batches: dict[tuple[Key, ...], "EncodedBatch"] = field(default_factory=dict)
    _kept: dict[tuple[int, Key], _Kept] = field(default_factory=dict)

    def take(self, place: Place, work: RowsInWork, start: int) -> _Kept | None:
        """What an encoder before wrote of this feature, whose findings are noted; None where none did.

        :func:`copy_values` copies the values, of all features that were taken at once.

        Args:
            start: First row of the slice in work.
        """
        kept = self._kept.get((start, place.key))
        if kept is None:
            return None
        name, _ = place.key
        if kept.missing is not None:
            work.missing[name] = kept.missing
        if kept.out_of_vocabulary is not None:
            work.out_of_vocabulary[name] = kept.out_of_vocabulary
        work.faults += kept.faults
        return kept

    def keep(self, place: Place, work: RowsInWork, start: int) -> None:
        """Keep what was just written of this feature: in the rows in work, until :meth:`detach`."""
        name, _ = place.key
        self._kept[start, place.key] = _Kept(
            place,
            work.ids,
            work.floats,
            work.missing.get(name),
            work.out_of_vocabulary.get(name),
            [fault for fault in work.faults if fault[0] == name],
        )

    def detach(self, work: RowsInWork, start: int) -> None:
        """Copy what is kept of these rows: they are about to be emptied, in the arrays of one model."""
        ids, floats = work.ids.copy(), work.floats.copy()
        for (first, key), kept in self._kept.items():
            if first == start and kept.ids is work.ids:
                self._kept[first, key] = replace(kept, ids=ids, floats=floats)


def copy_values(taken: Sequence[tuple[_Kept, Place]], work: RowsInWork) -> None:
    """Copy the ids and floats of features, each to its place; those that lie side by side in both models at once.

    Column by column, each copy would go through all rows again.
    """
    _copy_runs([(kept.ids, kept.place.ids, place.ids) for kept, place in taken], work.ids)
    _copy_runs([(kept.floats, kept.place.floats, place.floats) for kept, place in taken], work.floats)


def _copy_runs(copies: Iterable[tuple[np.ndarray, slice, slice]], target: np.ndarray) -> None:
    runs: list[tuple[np.ndarray, slice, slice]] = []
    for source, here, there in copies:
        if runs and runs[-1][0] is source and runs[-1][1].stop == here.start and runs[-1][2].stop == there.start:
            _, first_here, first_there = runs.pop()
            here, there = slice(first_here.start, here.stop), slice(first_there.start, there.stop)
        if here.start < here.stop:
            runs.append((source, here, there))
    for source, here, there in runs:
        target[:, there] = source[:, here]


def places(schema: FeatureSchema, layout: SideLayout) -> dict[str, Place]:
    """Where each feature of a side that can be shared stands, by name."""
    nothing = slice(0, 0)
    ids = {bag.name: slice(bag.start, bag.start + bag.width) for bag in layout.bags}
    floats = {column.name: slice(column.start, column.start + column.width) for column in layout.dense}
    return {
        name: Place((name, _key(schema, name)), ids.get(name, nothing), floats.get(name, nothing))
        for name in [*ids, *floats]
    }


def _key(schema: FeatureSchema, name: str) -> bytes:
    """What decides the ids and floats that raw values of a feature get."""
    feature = schema.features[name]
    alike = msgspec.structs.replace(feature, table=None, pooling="mean", label=None)
    table = None if feature.table is None else schema.tables[feature.table]
    return msgspec.json.encode([alike, table and [table.buckets, table.vocabulary]])
