"""The block that finds ads, made from the blocks that hold them in one more pass over their files.

Shapes: A ads, H heads, D width of a head's vector.
"""

from pathlib import Path
from typing import Any

import numpy as np

from contracts.schema import FeatureSchema
from indexing.arrays import map_array
from indexing.blocks import objective_heads
from indexing.retrieval import RetrievalWriter

BLOCKS = ("vectors", "bias", "objectives", "bids")
ROWS = 65_536


def build_retrieval(directory: Path, schema: FeatureSchema, *, head_dim: int) -> dict[str, dict[str, Any]]:
    """Write ``retrieval/`` of the index at ``directory``, whose other blocks are complete.

    Vectors in int8 are multiplied by their scales: what is searched is what is scored.

    Args:
        schema: Of the two-tower bundle: its tasks are the heads.
        head_dim: D.

    Returns:
        By head, what the manifest tells: the kind of FAISS index and how many ads it holds.
    """
    blocks = {name: map_array(directory / f"{name}.npy") for name in BLOCKS}
    scales_file = directory / "scales.npy"
    scales = map_array(scales_file) if scales_file.exists() else None
    heads = np.array([*objective_heads(schema), 0])  # the last entry: code -1, no objective
    counts = np.zeros(len(schema.tasks) + 1, np.int64)
    writer = RetrievalWriter(directory / "retrieval", num_heads=len(schema.tasks), head_dim=head_dim)
    for start in range(0, len(blocks["bias"]), ROWS):
        part = {name: block[start : start + ROWS] for name, block in blocks.items()}
        vectors = part["vectors"].astype(np.float32)
        if scales is not None:
            vectors *= np.repeat(scales[start : start + ROWS], head_dim, axis=1)
        of_head = heads[part["objectives"]]
        writer.append(vectors, part["bias"], of_head, part["bids"])
        counts += np.bincount(of_head + 1, minlength=len(counts))
    writer.finish()
    return {task: {"kind": "flat", "ads": int(counts[place + 1])} for place, task in enumerate(schema.tasks)}
