"""From raw ads to what an index stores of them: pin embeddings by one bundle, features encoded for another."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from contracts.bundle import PARITY_FILE, Bundle
from contracts.encoding import Coverage, Encoded, EncodedBatch, Encoder
from indexing.catalog import check_features
from towers.serving import TwoTowerServing, split_pin_embedding


@dataclass(frozen=True)
class EmbeddedAds:
    """What is stored of A ads.

    Args:
        vectors: [A, H * D], of the index's precision.
        bias: float32 [A, H].
        heavy: Encoded features for the heavy ranker, or None without one.
    """

    vectors: np.ndarray
    bias: np.ndarray
    heavy: Encoded | None


class AdEmbedder:
    """Embeds and encodes batches of raw ads, and keeps count of what was missing, invalid or out of vocabulary.

    Args:
        two_tower: Its pin tower embeds; it is first checked against the rows saved in the bundle.
        heavy: Its schema encodes the ads' features, or None.
        precision: ``fp16`` or ``fp32``, of the vectors.
        threads: Threads of the pin tower.

    Raises:
        ArtifactError: The pin tower does not compute what it computed when the bundle was sealed.
    """

    def __init__(self, two_tower: Bundle, heavy: Bundle | None, *, precision: str, threads: int) -> None:
        self._towers = TwoTowerServing.load(two_tower, threads=threads)
        self._towers.check_parity(two_tower.tensors(PARITY_FILE), source=str(two_tower.file(PARITY_FILE)))
        self._bundles = {"two_tower": two_tower} | ({"heavy": heavy} if heavy else {})
        self._encoders = {"two_tower": self._towers.ad_encoder} | (
            {"heavy": Encoder(heavy.schema, "ad")} if heavy else {}
        )
        self._dtype = np.dtype(np.float16 if precision == "fp16" else np.float32)
        self.head_dim = self._embedding_width() - 2
        self.coverage = {name: Coverage() for name in self._encoders}
        self.faults: dict[str, int] = {}
        self.dropped = {"features": 0, "embedding": 0}

    @property
    def columns(self) -> tuple[str, ...]:
        """Raw columns that either model reads."""
        return tuple(sorted({column for encoder in self._encoders.values() for column in encoder.columns}))

    def check_columns(self, dataset: ds.Dataset) -> None:
        """Refuse a dataset that lacks a column which a model was trained on; LogError names file, column and model."""
        for name, encoder in self._encoders.items():
            check_features(dataset, encoder.columns, model=self._bundles[name].manifest.version)

    def embed(self, ads: pa.Table, *, source: str) -> tuple[EmbeddedAds, np.ndarray]:
        """Embed a batch of B ads.

        Returns:
            The A ads that can be stored, and which they are, bool [B]. An ad with NaN, infinity or an invalid value, or
            with an embedding that is not finite in the index's precision, is left out and counted.

        Raises:
            LogError: A column has a type that a feature cannot read.
        """
        encoded = {name: self._encode(name, encoder, ads, source) for name, encoder in self._encoders.items()}
        valid = ~np.any([batch.invalid for batch in encoded.values()], axis=0)
        vectors, bias = split_pin_embedding(self._towers.embed_ads(encoded["two_tower"].encoded))
        with np.errstate(over="ignore"):
            vectors = vectors.astype(self._dtype)
        finite = np.isfinite(vectors).all(1) & np.isfinite(bias).all(1)
        usable = valid & finite
        self.dropped["features"] += int((~valid).sum())
        self.dropped["embedding"] += int((valid & ~finite).sum())
        heavy = encoded["heavy"].encoded.take(usable) if "heavy" in encoded else None
        return EmbeddedAds(vectors[usable], bias[usable], heavy), usable

    def _embedding_width(self) -> int:
        nothing = self._towers.ad_encoder.encode({}, num_rows=1, absent="missing").encoded
        return self._towers.embed_ads(nothing).shape[2]

    def _encode(self, name: str, encoder: Encoder, ads: pa.Table, source: str) -> EncodedBatch:
        batch = encoder.encode(ads, num_rows=len(ads), invalid="mark", source=source)
        self.coverage[name] = self.coverage[name].merge(batch.coverage)
        for fault in batch.faults:
            rule = f"{name} {fault.column}: {fault.rule}"
            self.faults[rule] = self.faults.get(rule, 0) + fault.count
        return batch
