"""From raw ads to what an index stores of them: pin embeddings by one bundle, features encoded for another."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from contracts.bundle import PARITY_FILE, Bundle
from contracts.encoding import Encoded, EncodedBatch, Encoder
from contracts.half import half_is_finite
from contracts.probability import sigmoid
from contracts.records import plain_text, utc_micros
from contracts.shared_features import SharedFeatures
from engines.memory import EngineMemory
from engines.names import EXACT_ENGINE
from indexing.attributes import ATTRIBUTES, BID_RULE, AdAttributes, ad_attributes, invalid_bids
from indexing.counters import Counters
from indexing.pin_engine import OpeningEngines, Spread, choose_pin_engine, embed_in_pieces
from indexing.precision import CHECKED_ADS, CHECKED_QUERIES, NO_LOSS, PrecisionLoss, precision_loss, spread_rows
from indexing.saved_queries import saved_query_embeddings
from indexing.shift import CountedRows, ShiftCounts, ad_profile, shift_warnings
from towers.serving import TwoTowerServing, quantise_vectors, score, split_pin_embedding

DTYPES: dict[str, np.dtype] = {"fp16": np.dtype(np.float16), "fp32": np.dtype(np.float32), "int8": np.dtype(np.int8)}
"""Of the vectors, by precision. Biases and scales are fp32 always."""


@dataclass(frozen=True)
class EmbeddedAds:
    """What is stored of A ads.

    Args:
        vectors: [A, H * D], of the index's precision.
        bias: float32 [A, H].
        scales: float32 [A, H] of int8 vectors, else None.
        heavy: Encoded features for the heavy ranker, or None without one.
    """

    vectors: np.ndarray
    bias: np.ndarray
    scales: np.ndarray | None
    heavy: Encoded | None


@dataclass(frozen=True)
class EmbeddedBatch:
    """A ads of a batch that can be stored, and what was counted of all that were read.

    Args:
        ids: [A].
        ads: What is stored of them.
        attributes: Status, bid, objective, advertiser.
        valid_from: int64 [A], microseconds UTC.
        counters: Over the ``num_read`` ads.
        num_read: Ads of the catalogue in this batch, those left out included.
    """

    ids: pa.StringArray
    ads: EmbeddedAds
    attributes: AdAttributes
    valid_from: np.ndarray
    counters: Counters
    num_read: int


class AdEmbedder:
    """Embeds and encodes batches of raw ads. It keeps no state, so that several threads may share it.

    Args:
        two_tower: Its pin tower embeds; it is first checked against the rows saved in the bundle.
        heavy: Its schema encodes the ads' features, or None.
        precision: ``fp16``, ``fp32`` or ``int8``, of the vectors.
        threads: Calls of ``embed`` that run at once.
        engine: Runs the pin tower: a name, or ``auto`` for the fastest that passes on this machine.
        opening: Engines of this name that are being opened.
        memory: Of what ``auto`` found before.

    Raises:
        ArtifactError: The pin tower does not compute what it computed when the bundle was sealed.
        ConfigError: No engine has this name.
    """

    def __init__(
        self,
        two_tower: Bundle,
        heavy: Bundle | None,
        *,
        precision: str,
        threads: int,
        engine: str = EXACT_ENGINE,
        opening: OpeningEngines | None = None,
        memory: EngineMemory | None = None,
    ) -> None:
        self._towers = TwoTowerServing.load(two_tower, threads=1)  # exact: others are compared with it
        self._towers.check_parity(two_tower.tensors(PARITY_FILE), source=str(two_tower.file(PARITY_FILE)))
        self.engine, self._pin_engine = choose_pin_engine(
            two_tower, self._towers.ad_lookup, name=engine, threads=threads, opening=opening, memory=memory
        )
        self.queries = saved_query_embeddings(two_tower, self._towers)
        self._bundles = {"two_tower": two_tower} | ({"heavy": heavy} if heavy else {})
        self._encoders = {"two_tower": self._towers.ad_encoder} | (
            {"heavy": Encoder(heavy.schema, "ad")} if heavy else {}
        )
        self._profiles = {name: profile for name, bundle in self._bundles.items() if (profile := ad_profile(bundle))}
        self._objective_names = two_tower.schema.objective_names
        self._precision, self.threads = precision, threads
        self.head_dim = self._embedding_width() - 2

    @property
    def columns(self) -> tuple[str, ...]:
        """Raw columns that either model reads."""
        return tuple(sorted({column for encoder in self._encoders.values() for column in encoder.columns}))

    def embed(self, ads: pa.Table, *, source: str, check: int = CHECKED_ADS, spread: Spread = map) -> EmbeddedBatch:
        """Embed a batch of B ads.

        An ad with NaN, infinity or an invalid value in a feature or the bid, or with an embedding that is not finite in
        the index's precision, is left out and counted.

        Args:
            ads: Columns ``ad_id``, ``valid_from``, those of :attr:`columns`, and those of the attributes that exist.
            source: File, for messages.
            check: Ads on which to measure what the precision costs, and to refuse too large an error; who merges judges
                the order.
            spread: Runs the pin tower over pieces of the batch, such as the ``map`` of a pool.

        Raises:
            LogError: A column has a type that a feature cannot read, or a value is unknown.
            ArtifactError: The stored vectors lose too much.
        """
        shared = SharedFeatures() if len(self._encoders) > 1 else None
        encoded = {
            name: encoder.encode(ads, num_rows=len(ads), invalid="mark", source=source, shared=shared)
            for name, encoder in self._encoders.items()
        }
        valid = ~np.any([batch.invalid for batch in encoded.values()], axis=0)
        towers_ads = encoded["two_tower"].encoded
        vectors, bias = split_pin_embedding(
            embed_in_pieces(self._pin_engine, self._towers.ad_lookup, towers_ads, spread)
        )
        stored, finite = self._stored(vectors, bias)
        bad_bid = invalid_bids(ads, source=source)
        usable = valid & finite & ~bad_bid
        heavy = encoded["heavy"].encoded if "heavy" in encoded else None
        names = ["ad_id", "valid_from", *(name for name in ATTRIBUTES if name in ads.column_names)]
        about = ads.select(names) if usable.all() else ads.select(names).filter(pa.array(usable))
        return EmbeddedBatch(
            ids=plain_text(about["ad_id"].combine_chunks()),
            ads=_kept(EmbeddedAds(*stored, heavy), usable),
            attributes=ad_attributes(about, self._objective_names, source=source),
            valid_from=utc_micros(about["valid_from"], column="valid_from", source=source),
            counters=Counters(
                dropped={
                    "features": int((~valid).sum()),
                    "bid": int((valid & bad_bid).sum()),
                    "embedding": int((valid & ~bad_bid & ~finite).sum()),
                },
                faults=_faults(encoded) | ({f"bid: {BID_RULE}": int(bad_bid.sum())} if bad_bid.any() else {}),
                coverage={name: batch.coverage for name, batch in encoded.items()},
                shift=self._shift({name: batch.encoded for name, batch in encoded.items()}, valid),
                precision=self._loss(towers_ads, stored, spread_rows(usable, check), source),
            ),
            num_read=len(ads),
        )

    def report(self, counters: Counters) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """How far the ads counted are from each model's training data, and warnings that name model and feature."""
        shift = {
            name: profile.report(counters.shift[name], counters.coverage[name])
            for name, profile in self._profiles.items()
            if name in counters.shift
        }
        return shift, [line for name, features in shift.items() for line in shift_warnings(name, features)]

    def _shift(self, encoded: dict[str, Encoded], valid: np.ndarray) -> dict[str, ShiftCounts]:
        """How the valid ads are spread, by model; what models of the same features have in common is counted once."""
        rows = {id(one): CountedRows(one, valid) for one in encoded.values()}
        return {name: profile.count_rows(rows[id(encoded[name])]) for name, profile in self._profiles.items()}

    def _loss(
        self, ads: Encoded, stored: tuple[np.ndarray, np.ndarray, np.ndarray | None], rows: np.ndarray, source: str
    ) -> PrecisionLoss:
        """What the vectors of some rows of the ads lose; ArtifactError where an error is too large."""
        if not len(rows):
            return NO_LOSS
        exact = split_pin_embedding(self._towers.embed_ads(ads.take(rows)))
        taken = [None if part is None else part[rows] for part in stored]
        queries = self.queries[:: -(-len(self.queries) // CHECKED_QUERIES)]
        of_exact, of_stored = (sigmoid(np.stack([score(query, *pins) for query in queries])) for pins in (exact, taken))
        loss = precision_loss(of_exact, of_stored)
        loss.check_error(self._precision, source=source)
        return loss

    def _stored(
        self, vectors: np.ndarray, bias: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]:
        """Vectors, biases and scales as they are stored, and which ads they are finite for, bool [B]."""
        if self._precision == "int8":
            finite = np.isfinite(vectors).all(1) & np.isfinite(bias).all(1)
            integers, scales = quantise_vectors(np.where(finite[:, None], vectors, 0), bias.shape[1])
            return (integers, bias, scales), finite
        with np.errstate(over="ignore"):
            vectors = vectors.astype(DTYPES[self._precision], copy=False)
        finite = half_is_finite(vectors) if vectors.dtype == np.float16 else np.isfinite(vectors)
        return (vectors, bias, None), finite.all(1) & np.isfinite(bias).all(1)

    def _embedding_width(self) -> int:
        nothing = self._towers.ad_encoder.encode({}, num_rows=1, absent="missing").encoded
        return self._towers.embed_ads(nothing).shape[2]


def _kept(ads: EmbeddedAds, usable: np.ndarray) -> EmbeddedAds:
    """The ads where ``usable`` is true, without a copy where all are."""
    if usable.all():
        return ads
    scales = None if ads.scales is None else ads.scales[usable]
    heavy = None if ads.heavy is None else ads.heavy.take(usable)
    return EmbeddedAds(ads.vectors[usable], ads.bias[usable], scales, heavy)


def _faults(encoded: dict[str, EncodedBatch]) -> dict[str, int]:
    return {
        f"{name} {fault.column}: {fault.rule}": fault.count for name, batch in encoded.items() for fault in batch.faults
    }
