"""Encoded examples as one row of numbers each, for models that know neither embeddings nor sequences."""

from dataclasses import dataclass

import numpy as np

from contracts.layout import IdColumn, SequenceLayout, SideLayout, side_layout
from contracts.schema import FeatureSchema
from modeling.examples import Examples

RECENT = 2
"""Most recent events of a sequence whose ids are columns of their own."""


@dataclass(frozen=True)
class FlatFeatures:
    """What trees read.

    Args:
        values: float32 [N, F].
        names: F names.
        cardinality: int [F], the number of ids where a column holds ids, 0 where it holds a number.
    """

    values: np.ndarray
    names: list[str]
    cardinality: np.ndarray

    def take(self, rows: np.ndarray) -> "FlatFeatures":
        """Some rows, by position or mask."""
        return FlatFeatures(self.values[rows], self.names, self.cardinality)


def flatten(schema: FeatureSchema, examples: Examples) -> FlatFeatures:
    """All that the ranker sees of each pair: its dense values, its ids, and its sequences by statistics.

    Dense values are as the ranker gets them; a transform is monotone, so that a tree loses nothing by it. Of a sequence
    there are the length, the ids of the most recent events, and for each table that the ad has an id of too, the number
    and the share of events that have the same id.
    """
    rows = {"query": examples.request_row, "ad": examples.ad_row}
    layouts = {side: side_layout(schema, side) for side in ("query", "ad", "pair")}
    columns: list[tuple[str, np.ndarray, int]] = []
    ids: dict[str, np.ndarray] = {}
    for side, layout in layouts.items():
        encoded = getattr(examples, side)
        if encoded is None:
            continue
        at = rows.get(side, slice(None))
        ids[side] = np.asarray(encoded.ids)[at]
        columns += _side_columns(schema, layout, ids[side], np.asarray(encoded.floats)[at])
    for sequence in layouts["query"].sequences:
        columns += _sequence_columns(schema, sequence, ids["query"], layouts["ad"], ids["ad"])
    names, values, cardinality = zip(*columns, strict=True)
    return FlatFeatures(np.stack(values, axis=1), list(names), np.array(cardinality))


def _side_columns(
    schema: FeatureSchema, layout: SideLayout, ids: np.ndarray, floats: np.ndarray
) -> list[tuple[str, np.ndarray, int]]:
    tables = schema.all_tables()
    found = []
    for column in layout.dense:
        for at in range(column.width):
            found.append((f"{column.name}.{at}", floats[:, column.start + at], 0))
    for bag in layout.bags:
        for at in range(bag.width):
            values = ids[:, bag.start + at].astype(np.float32)
            found.append((f"{bag.name}.{at}", values, tables[bag.table].num_rows))
    return found


def _sequence_columns(
    schema: FeatureSchema, sequence: SequenceLayout, query_ids: np.ndarray, ad: SideLayout, ad_ids: np.ndarray
) -> list[tuple[str, np.ndarray, int]]:
    tables = schema.all_tables()
    length = (_events(sequence.fields[0], query_ids) != 0).sum(1).astype(np.float32)
    found = [(f"{sequence.name}.length", length, 0)]
    for field in sequence.fields:
        events = _events(field, query_ids)
        for at in range(min(RECENT, field.width)):
            name = f"{sequence.name}.{field.name}.{at}"
            found.append((name, events[:, at].astype(np.float32), tables[field.table].num_rows))
        for bag in (bag for bag in ad.bags if bag.table == field.table):
            same = np.zeros(len(length), np.float32)
            for own in ad_ids[:, bag.start : bag.start + bag.width].T:
                same += ((events == own[:, None]) & (own[:, None] > 0)).sum(1)
            found.append((f"{sequence.name}.same_{bag.name}", same, 0))
            found.append((f"{sequence.name}.share_of_{bag.name}", same / np.maximum(length, 1.0), 0))
    return found


def _events(field: IdColumn, ids: np.ndarray) -> np.ndarray:
    return ids[:, field.start : field.start + field.width]
