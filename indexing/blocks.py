"""Writes the blocks of an index in batches; memory stays small whatever the number of ads.

A writer that was interrupted goes on after the ads that its last ``sync`` brought to disk.
"""

from pathlib import Path

import numpy as np

from contracts.artifact import fsync
from contracts.layout import SideLayout
from contracts.schema import FeatureSchema
from indexing.arrays import ArrayWriter
from indexing.embed import DTYPES, EmbeddedBatch
from indexing.id_table import IdTableWriter
from indexing.numbering import Numbering
from indexing.retrieval import IMPRESSION


class BlockWriter:
    """Appends ads to all blocks of one index but for the one that finds ads, which is made of these.

    Args:
        directory: Of the index; created.
        schema: Of the two-tower bundle: its tasks are the heads.
        head_dim: Width of a head's vector.
        precision: Of the vectors, see ``indexing.embed.DTYPES``.
        heavy_layout: Layout of the heavy ranker's ad side, or None.
        scratch: Directory for temporary files, which the caller removes.
        resume_ads: Ads to keep of an interrupted writer; 0 begins anew.
        resume_advertisers: The advertisers of these.

    Raises:
        ArtifactError: The files hold fewer ads than are to be kept.
    """

    def __init__(
        self,
        directory: Path,
        schema: FeatureSchema,
        *,
        head_dim: int,
        precision: str,
        heavy_layout: SideLayout | None,
        scratch: Path,
        resume_ads: int = 0,
        resume_advertisers: int = 0,
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
        directory.mkdir(exist_ok=True)
        self._directory, self.num_ads = directory, resume_ads
        self._arrays = {
            name: ArrayWriter(directory / f"{name}.npy", *shape, resume_rows=resume_ads)
            for name, shape in shapes.items()
        }
        self._ids = IdTableWriter(directory / "ids", resume_rows=resume_ads)
        self._advertisers = Numbering(
            directory / "advertisers", scratch / "advertisers", resume_rows=resume_advertisers
        )

    @property
    def num_advertisers(self) -> int:
        return self._advertisers.num_texts

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
        self.num_ads += len(batch.ids)

    def sync(self) -> None:
        """Bring all ads to disk, so that a later writer can go on after them."""
        for writer in self._arrays.values():
            writer.sync()
        self._ids.sync()
        self._advertisers.sync()
        for folder in (self._directory, self._directory / "ids", self._directory / "advertisers"):
            fsync(folder)

    def finish_arrays(self) -> None:
        """Complete the arrays, of which the block that finds ads is made."""
        for writer in self._arrays.values():
            writer.close()

    def finish_ids(self, *, source: str) -> None:
        """Complete the tables of ids and advertisers; LogError when an id came twice."""
        self._ids.finish(source=source)
        self._advertisers.finish()


def objective_heads(schema: FeatureSchema) -> list[int]:
    """Return the head that each objective pays for, or ``IMPRESSION``, in the order of their codes."""
    tasks = list(schema.tasks)
    paid = [schema.objectives[name] for name in schema.objective_names]
    return [IMPRESSION if task is None else tasks.index(task) for task in paid]
