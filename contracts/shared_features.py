"""Features that several models have in common, encoded once: what one encoder wrote of a column, the next one copies.

Two features are alike where the same raw values give the same ids and floats; the width of a table, which the encoder
never sees, and the pooling may differ. Sequences are left out: they are encoded for one model alone, once a request.
"""

from dataclasses import dataclass, field

import msgspec
import numpy as np

from contracts.layout import SideLayout
from contracts.rows_in_work import RowsInWork
from contracts.schema import FeatureSchema

Key = tuple[str, bytes]


@dataclass(frozen=True)
class Place:
    """A feature, what decides its values, and its columns of ids and floats, of which one slice is empty."""

    key: Key
    ids: slice
    floats: slice


@dataclass(frozen=True)
class _Kept:
    """What was written of one feature: ids and floats [B, width], and what was found."""

    ids: np.ndarray
    floats: np.ndarray
    missing: int | None
    out_of_vocabulary: int | None
    faults: list[tuple[str, str, np.ndarray]]


@dataclass
class SharedFeatures:
    """What the encoders of several models, one after another, wrote of the same rows; for one thread."""

    _kept: dict[tuple[int, Key], _Kept] = field(default_factory=dict)

    def fill(self, place: Place, work: RowsInWork, start: int) -> bool:
        """Copy what an encoder before wrote of this feature; false where none did.

        Args:
            start: First row of the slice in work.
        """
        kept = self._kept.get((start, place.key))
        if kept is None:
            return False
        name, _ = place.key
        work.ids[:, place.ids] = kept.ids
        work.floats[:, place.floats] = kept.floats
        if kept.missing is not None:
            work.missing[name] = kept.missing
        if kept.out_of_vocabulary is not None:
            work.out_of_vocabulary[name] = kept.out_of_vocabulary
        work.faults += kept.faults
        return True

    def keep(self, place: Place, work: RowsInWork, start: int) -> None:
        """Keep what was just written of this feature: views of the rows in work, until :meth:`detach`."""
        name, _ = place.key
        self._kept[start, place.key] = _Kept(
            work.ids[:, place.ids],
            work.floats[:, place.floats],
            work.missing.get(name),
            work.out_of_vocabulary.get(name),
            [fault for fault in work.faults if fault[0] == name],
        )

    def detach(self, start: int) -> None:
        """Copy what is kept of a slice as views: its rows are about to be emptied, in the arrays of one model."""
        for (first, key), kept in self._kept.items():
            if first == start and kept.ids.base is not None:
                copied = (kept.ids.copy(), kept.floats.copy(), kept.missing, kept.out_of_vocabulary, kept.faults)
                self._kept[first, key] = _Kept(*copied)


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
