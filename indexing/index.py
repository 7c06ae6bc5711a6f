"""An index on disk, opened for reading: every block is memory-mapped and shared by processes.

    ids/                        id table
    vectors.npy, bias.npy       [A, H * D] fp16 or fp32; [A, H] fp32
    status.npy, bids.npy, objectives.npy, valid-from.npy, advertisers.npy, advertisers/
    retrieval/                  FAISS, for requests without candidates
    heavy-ids.npy, heavy-floats.npy

Shapes: A ads, H heads, D width of a head's vector.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from contracts.artifact import read_manifest, verify_files
from contracts.encoding import Encoded
from contracts.errors import ArtifactError
from contracts.half import Halves, half_bits
from contracts.release import IndexManifest
from indexing.arrays import map_array
from indexing.id_table import IdTable
from indexing.retrieval import Retrieval
from indexing.retrieval_gpu import has_gpu

_COLUMNS = ("vectors", "bias", "status", "bids", "objectives", "valid_from", "advertisers")


@dataclass(frozen=True)
class Pins:
    """Split pin embeddings of A ads, as ``towers.serving.score`` reads them.

    Args:
        vectors: [A, H * D], fp32, fp16 or int8.
        bias: fp32 [A, H].
        scales: fp32 [A, H] of int8 vectors, else None.
    """

    vectors: np.ndarray
    bias: np.ndarray
    scales: np.ndarray | None = None

    @cached_property
    def halves(self) -> Halves | None:
        """What a kernel scores; None where it is for others to do."""
        return half_bits(self.vectors, self.bias)

    def take(self, rows: np.ndarray) -> "Pins":
        """The ads at these positions."""
        scales = None if self.scales is None else self.scales.take(rows, axis=0)
        return Pins(self.vectors.take(rows, axis=0), self.bias.take(rows, axis=0), scales)


@dataclass(frozen=True, kw_only=True)
class Index:
    """One embedding version of a catalogue. Row r of every array is the ad ``id_table.ids([r])``.

    Args:
        vectors: [A, H * D], in the layout that ``towers.serving.score`` reads.
        bias: float32 [A, H].
        status: int8 [A], position in ``contracts.records.STATUSES``.
        bids: float32 [A]; NaN where the catalogue has none.
        objectives: int8 [A], position in ``manifest.objectives``; -1 where the catalogue has none.
        valid_from: int64 [A], microseconds UTC, since when the indexed content of each ad is valid.
        advertisers: int32 [A], row in ``advertiser_ids``; -1 where the catalogue has none.
        heavy_ads: Encoded features for the heavy ranker, or None.
        scales: float32 [A, H] of int8 vectors, else None.
    """

    path: Path
    manifest: IndexManifest
    id_table: IdTable
    vectors: np.ndarray
    bias: np.ndarray
    status: np.ndarray
    bids: np.ndarray
    objectives: np.ndarray
    valid_from: np.ndarray
    advertisers: np.ndarray
    advertiser_ids: IdTable
    heavy_ads: Encoded | None
    retrieval: Retrieval
    scales: np.ndarray | None = None

    @classmethod
    def open(cls, path: Path, *, verify: bool = True) -> "Index":
        """Map an index.

        Args:
            verify: Compare the checksum of every file first; a reader that did so a moment ago may skip it.

        Raises:
            ArtifactError: Unfinished, truncated or altered.
        """
        path = Path(path)
        manifest = read_manifest(path, IndexManifest)
        if verify:
            verify_files(path, manifest.files)
        columns = {name: _map(path, name) for name in _COLUMNS}
        heavy = Encoded(_map(path, "heavy-ids"), _map(path, "heavy-floats")) if manifest.heavy else None
        index = cls(
            path=path,
            manifest=manifest,
            id_table=IdTable.open(path / "ids"),
            advertiser_ids=IdTable.open(path / "advertisers"),
            heavy_ads=heavy,
            retrieval=Retrieval.open(path / "retrieval", num_heads=len(manifest.tasks), head_dim=manifest.head_dim),
            scales=_map(path, "scales") if manifest.precision == "int8" else None,
            **columns,
        )
        index._check_lengths()
        return index

    def on_gpu(self) -> "Index":
        """The same index, searched on a GPU where this machine has one; see ``indexing.retrieval_gpu``."""
        return replace(self, retrieval=self.retrieval.on_gpu()) if has_gpu() else self

    @property
    def scenario(self) -> str:
        return self.manifest.scenario

    @cached_property
    def pins(self) -> Pins:
        """What scores all ads."""
        return Pins(self.vectors, self.bias, self.scales)

    def __len__(self) -> int:
        return self.manifest.num_ads

    def search(
        self,
        query_embedding: np.ndarray,
        head_weights: np.ndarray | None = None,
        k: int = 100,
        allowed: np.ndarray | None = None,
    ) -> np.ndarray:
        """Find the ads of largest ``log bid + w_h * logit_h``, h being the head that the ad's objective pays for.

        This is near the order of utility, not the same: take more than needed and rank by exact utility. An ad that
        pays for the impression counts its log bid; one without an objective pays for the first task.

        Args:
            query_embedding: [H, D+2], of the bundle that the index was built with.
            head_weights: w [H]; 0 leaves out the ads that pay for the head. None is 1 for all.
            k: How many.
            allowed: Which ads may be found, bool [A]; None is all.

        Returns:
            At most ``k`` distinct rows, int64, best first.
        """
        return self.retrieval.search(query_embedding, head_weights, k, allowed)

    def _check_lengths(self) -> None:
        columns = {name: len(getattr(self, name)) for name in _COLUMNS}
        columns |= {"ids": len(self.id_table), "retrieval": len(self.retrieval)}
        if self.heavy_ads is not None:
            columns["heavy"] = len(self.heavy_ads)
        wrong = {name: length for name, length in columns.items() if length != self.manifest.num_ads}
        if wrong:
            raise ArtifactError(f"{self.path}: expected {self.manifest.num_ads} ads in each block, got {wrong}")


def _map(path: Path, name: str) -> np.ndarray:
    file = path / f"{name.replace('_', '-')}.npy"
    try:
        return map_array(file)
    except FileNotFoundError:
        raise ArtifactError(
            f"{file}: missing, an earlier version of adsieve made this index; run `adsieve index build` again"
        ) from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{file}: not an array: {error}") from error
