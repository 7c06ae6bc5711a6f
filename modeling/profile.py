"""Training statistics of every feature, kept in a bundle: what later traffic is compared with."""

from pathlib import Path
from typing import Any

import numpy as np

from contracts.artifact import write_json
from contracts.encoding import Coverage, Encoded
from contracts.histogram import float_bins, id_bins, quantile_edges
from contracts.layout import FloatColumn, IdColumn, SideLayout, side_layout
from contracts.schema import FeatureSchema
from modeling.examples import Examples

PROFILE_FILE = "profile.json"
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_SAMPLE = 200_000


def write_profile(schema: FeatureSchema, examples: Examples, directory: Path) -> None:
    """Write ``profile.json`` into ``directory``."""
    write_json(directory / PROFILE_FILE, feature_profile(schema, examples))


def feature_profile(schema: FeatureSchema, examples: Examples) -> dict[str, Any]:
    """Per side and feature: how often it is missing or out of vocabulary, and how its encoded values are spread.

    A dense feature gives mean, standard deviation, quantiles and a histogram after its transform; an embedding the mean
    and standard deviation over all its values; ids their number of distinct values, the share of the most frequent one
    and their groups (``contracts.histogram``). Taken over the distinct requests and ad rows, at most 200,000 evenly
    chosen ones, and over the pairs.
    """
    sides = {"query": examples.query, "ad": examples.ad, "pair": examples.pair}
    return {
        side: side_profile(schema, side, encoded, examples.summary.coverage[side])
        for side, encoded in sides.items()
        if encoded is not None
    }


def side_profile(schema: FeatureSchema, side: Any, encoded: Encoded, coverage: Coverage) -> dict[str, Any]:
    """The profile of one side's encoded rows, as :func:`feature_profile` describes it."""
    rows = np.unique(np.linspace(0, len(encoded) - 1, min(len(encoded), _SAMPLE)).astype(np.int64))
    profile = _values(side_layout(schema, side), encoded.take(rows))
    for name, values in profile.items():
        for key, counts in (("missing", coverage.missing), ("out_of_vocabulary", coverage.out_of_vocabulary)):
            values[key] = counts.get(name, 0) / max(coverage.rows, 1)
    return {"rows": len(encoded), "features": profile}


def _values(layout: SideLayout, encoded: Encoded) -> dict[str, dict[str, Any]]:
    profile = {column.name: _float_profile(column, encoded.floats) for column in layout.dense}
    profile |= {column.name: _id_profile(column, encoded.ids) for column in layout.bags}
    for sequence in layout.sequences:
        first = sequence.fields[0]
        lengths = (encoded.ids[:, first.start : first.start + first.width] != 0).sum(1)
        for column in sequence.fields:
            found = _id_profile(column, encoded.ids)
            profile[f"{sequence.name}.{column.name}"] = found | {"mean_length": float(lengths.mean())}
    return profile


def _float_profile(column: FloatColumn, floats: np.ndarray) -> dict[str, Any]:
    values = floats[:, column.start : column.start + column.width].astype(np.float64)
    profile: dict[str, Any] = {"mean": float(values.mean()), "std": float(values.std())}
    if column.width == 1:
        found = np.quantile(values, QUANTILES)
        profile["quantiles"] = {str(share): float(value) for share, value in zip(QUANTILES, found, strict=True)}
        edges = quantile_edges(values)
        shares = float_bins(values[:, 0], edges) / len(values)
        profile["histogram"] = {"edges": edges.tolist(), "shares": shares.tolist()}
    return profile


def _id_profile(column: IdColumn, ids: np.ndarray) -> dict[str, Any]:
    values = ids[:, column.start : column.start + column.width]
    _, counts = np.unique(values[values != 0], return_counts=True)
    if not len(counts):
        return {"distinct": 0, "top_share": 0.0}
    groups = id_bins(values) / counts.sum()
    return {"distinct": len(counts), "top_share": float(counts.max() / counts.sum()), "groups": groups.tolist()}
