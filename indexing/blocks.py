"""Writes the blocks of an index in batches; memory stays small whatever the number of ads."""

from pathlib import Path

import numpy as np

from contracts.layout import SideLayout
from contracts.schema import FeatureSchema
from indexing.arrays import ArrayWriter
from indexing.attributes import Numbering
from indexing.embed import DTYPES, EmbeddedBatch
from indexing.id_table import IdTable, IdTableWriter
from indexing.retrieval import IMPRESSION, RetrievalWriter


class BlockWriter:
    """Appends ads to all blocks of one index.

    Args:
        directory: Existing directory of the index.
        schema: Of the two-tower bundle: its tasks are the heads.
        head_dim: Width of a head's vector.
        precision: Of the vectors, see ``indexing.embed.DTYPES``.
        heavy_layout: Layout of the heavy ranker's ad side, or None.
    """

    def __init__(
        self, directory: Path, schema: FeatureSchema, *, head_dim: int, precision: str, heavy_layout: SideLayout | None
    ) -> None:
        num_heads = len(schema.tasks)
        shapes: dict[str, tuple[np.typing.DTypeLike, tuple[int, ...]]] = {
            "vectors": (DTYPES[precision], (num_heads * head_dim,)),
            "bias": (np.float32, (num_heads,)),
            "status": (np.int8, ()),
            "bids": (np.float32, ()),
            "objectives": (np.int8, ()),
            "valid-from": (np.int64, ()),
            "advertisers": (np.int32, ()),
        }
        if precision == "int8":
            shapes["scales"] = (np.float32, (num_heads,))
        if heavy_layout is not None:
            shapes["heavy-ids"] = (np.int32, (heavy_layout.num_ids,))
            shapes["heavy-floats"] = (np.float32, (heavy_layout.num_floats,))
        self._directory, self.num_ads = directory, 0
        self._arrays = {name: ArrayWriter(directory / f"{name}.npy", *shape) for name, shape in shapes.items()}
        self._ids = IdTableWriter(directory / "ids")
        self._retrieval = RetrievalWriter(directory / "retrieval", num_heads=num_heads, head_dim=head_dim)
        self._head_of_objective = np.array([*objective_heads(schema), 0])
        self._advertisers = Numbering()

    def append(self, batch: EmbeddedBatch) -> None:
        """Append the A ads of a batch."""
        ads, attributes = batch.ads, batch.attributes
        columns = {
            "vectors": ads.vectors,
            "bias": ads.bias,
            "status": attributes.status,
            "bids": attributes.bids,
            "objectives": attributes.objectives,
            "valid-from": batch.valid_from,
            "advertisers": self._advertisers(attributes.advertisers),
        }
        if ads.scales is not None:
            columns["scales"] = ads.scales
        if ads.heavy is not None:
            columns |= {"heavy-ids": ads.heavy.ids, "heavy-floats": ads.heavy.floats}
        for name, writer in self._arrays.items():
            writer.append(columns[name])
        self._ids.append(batch.ids)
        heads = self._head_of_objective[attributes.objectives]
        self._retrieval.append(ads.vectors, ads.bias, heads, attributes.bids)
        self.num_ads += len(batch.ids)

    def finish(self, *, source: str) -> None:
        """Complete all files; LogError when an id came twice."""
        for writer in self._arrays.values():
            writer.close()
        self._retrieval.finish()
        self._ids.finish(source=source)
        IdTable.build(self._advertisers.texts, self._directory / "advertisers")


def objective_heads(schema: FeatureSchema) -> list[int]:
    """Return the head that each objective pays for, or ``IMPRESSION``, in the order of their codes."""
    tasks = list(schema.tasks)
    paid = [schema.objectives[name] for name in schema.objective_names]
    return [IMPRESSION if task is None else tasks.index(task) for task in paid]
