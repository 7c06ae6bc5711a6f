"""The block that finds ads, made from the blocks that hold them in one more pass over their files.

Shapes: A ads, R requests, H heads, D width of a head's vector.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contracts.half import as_float
from contracts.records import STATUSES
from contracts.schema import FeatureSchema
from indexing.arrays import map_array, release_pages
from indexing.blocks import objective_heads
from indexing.config import IndexConfig
from indexing.index import Pins
from indexing.retrieval import IMPRESSION
from indexing.retrieval_choice import Judge, choose
from indexing.retrieval_files import ROWS
from indexing.retrieval_writer import RetrievalWriter
from indexing.tangent import Tangents, sample_rows

_ACTIVE = STATUSES.index("active")


@dataclass(frozen=True)
class RetrievalReport:
    """What the manifest tells.

    Args:
        heads: By head, the kind of FAISS index and how many ads it holds; of lists their number, how many a search
            looks into, and the share of the ads that it compares.
        recall: Share of the best ads by exact utility that a search of the whole index finds, if all groups were flat
            and as they are; of how many best ads and saved requests. Empty without requests.
    """

    heads: dict[str, dict[str, Any]]
    recall: dict[str, float]


def build_retrieval(
    directory: Path,
    schema: FeatureSchema,
    *,
    head_dim: int,
    queries: np.ndarray | None = None,
    config: IndexConfig | None = None,
) -> RetrievalReport:
    """Write ``retrieval/`` of the index at ``directory``, whose other blocks are complete.

    Vectors in int8 are multiplied by their scales: what is searched is what is scored.

    Args:
        schema: Of the two-tower bundle: its tasks are the heads.
        head_dim: D.
        queries: Query embeddings of saved requests, float32 [R, H, D+2]; without any, nothing is measured and all
            groups stay flat.
        config: Of the build; None is all defaults.
    """
    blocks = _Blocks.open(directory, schema, head_dim)
    counts = blocks.write_flat(directory / "retrieval")
    heads: dict[str, dict[str, Any]] = {
        task: {"kind": "flat", "ads": int(counts[head])} for head, task in enumerate(schema.tasks)
    }
    if queries is None or len(queries) == 0:
        return RetrievalReport(heads, {})
    judge = Judge.of(queries, blocks.tangents(), blocks.allowed())
    divisions, recall = choose(directory / "retrieval", judge, config or IndexConfig(), dim=head_dim + 2)
    for head, division in divisions.items():
        heads[schema.tasks[head]] |= division
    return RetrievalReport(heads, recall)


@dataclass(frozen=True)
class _Blocks:
    """The blocks of an index that retrieval is made of, mapped. ``heads`` is by code of objective, its last of -1."""

    pins: Pins
    status: np.ndarray
    bids: np.ndarray
    objectives: np.ndarray
    heads: np.ndarray
    head_dim: int

    @classmethod
    def open(cls, directory: Path, schema: FeatureSchema, head_dim: int) -> "_Blocks":
        names = ("vectors", "bias", "status", "bids", "objectives")
        vectors, bias, status, bids, objectives = (map_array(directory / f"{name}.npy") for name in names)
        scales_file = directory / "scales.npy"
        scales = map_array(scales_file) if scales_file.exists() else None
        heads = np.array([*objective_heads(schema), 0])
        return cls(Pins(vectors, bias, scales), status, bids, objectives, heads, head_dim)

    def write_flat(self, directory: Path) -> np.ndarray:
        """Write flat groups; returns how many ads each head has [H]."""
        num_heads = self.pins.bias.shape[1]
        counts = np.zeros(num_heads + 1, np.int64)
        writer = RetrievalWriter(directory, num_heads=num_heads, head_dim=self.head_dim)
        for start in range(0, len(self.bids), ROWS):
            part = slice(start, start + ROWS)
            vectors = as_float(self.pins.vectors[part])
            if self.pins.scales is not None:
                vectors *= np.repeat(self.pins.scales[part], self.head_dim, axis=1)
            heads = self.heads[self.objectives[part]]
            writer.append(vectors, self.pins.bias[part], heads, self.bids[part])
            counts += np.bincount(heads - IMPRESSION, minlength=len(counts))
            self._release()
        writer.finish()
        return counts[1:]

    def allowed(self) -> Callable[[np.ndarray], np.ndarray]:
        """What the service lets a search find, unless it is told otherwise: active ads, with a bid if any has one."""
        starts = range(0, len(self.bids), ROWS)
        if any((~np.isnan(self.bids[start : start + ROWS])).any() for start in starts):
            return lambda rows: (self.status[rows] == _ACTIVE) & ~np.isnan(self.bids[rows])
        return lambda rows: self.status[rows] == _ACTIVE

    def tangents(self) -> Tangents:
        """As the service makes them, from the ads that are active."""
        rows, num_active = sample_rows(lambda part: self.status[part] == _ACTIVE, len(self.status))
        heads = self.heads[self.objectives[rows]]
        heads = np.where(heads == IMPRESSION, self.pins.bias.shape[1], heads)
        tangents = Tangents.of(self.pins.take(rows), heads, self.bids[rows], num_active)
        self._release()
        return tangents

    def _release(self) -> None:
        release_pages(self.pins.vectors, self.pins.bias, self.pins.scales, self.status, self.bids, self.objectives)
