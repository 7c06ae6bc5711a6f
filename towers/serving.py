"""A two-tower bundle as indexing and serving run it: encoders, look-up, exported graphs, and the dot product in NumPy.

Imports neither torch nor model code. Shapes: R requests, A ads, C candidates, H heads, D width of a head's vector.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from contracts import compiled
from contracts.bundle import PARITY_FILE, Bundle
from contracts.encoding import Encoded, Encoder
from contracts.half import Halves, as_float, half_bits
from contracts.row_encoder import RowEncoder
from contracts.schema import FeatureSchema
from engines.gpu import Gpu
from engines.lookup import TableLookup
from engines.memory import EngineMemory
from engines.names import EXACT_ENGINE, engines_here
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.parity import check_parity
from engines.protocol import Engine
from engines.select import Selection, Trial
from towers.query_engine import open_query_engine, select_query_engine

PARITY_TOLERANCE = 1e-4
"""Largest error of an embedding, relative above 1: fp32 engines sum in other orders."""
LARGEST_INT8 = 127


class TwoTowerServing:
    """Embeds encoded requests and ads with the exported graphs of one bundle.

    Args:
        schema: Fitted schema of the bundle.
        tables: ``tables.<name>`` to float32 [rows, dim].
        query_engine: Runs ``query_tower.onnx``.
        pin_engine: Runs ``pin_tower.onnx``.

    Attributes:
        trials: What each engine of the query tower did, where the fastest was chosen; else empty.
    """

    def __init__(
        self, schema: FeatureSchema, tables: Mapping[str, np.ndarray], *, query_engine: Engine, pin_engine: Engine
    ) -> None:
        self.query_encoder = Encoder(schema, "query")
        self.query_rows = RowEncoder(self.query_encoder)
        self.ad_encoder = Encoder(schema, "ad")
        self._query_lookup = TableLookup(self.query_encoder.layout, tables, pool_sequences=True, keep_events=False)
        self._ad_lookup = TableLookup(self.ad_encoder.layout, tables, pool_sequences=True, keep_events=False)
        self._query_engine = query_engine
        self._pin_engine = pin_engine
        self.trials: tuple[Trial, ...] = ()

    @property
    def engines(self) -> list[Engine]:
        """What runs its graphs."""
        return [self._query_engine, self._pin_engine]

    @classmethod
    def load(cls, bundle: Bundle, *, threads: int = 2) -> "TwoTowerServing":
        """Open the graphs and tables of a verified bundle on the CPU, in fp32.

        Args:
            bundle: Of kind ``two_tower``.
            threads: Threads that one graph may use.
        """
        return cls(
            bundle.schema,
            bundle.tensors(),
            query_engine=open_query_engine(bundle, EXACT_ENGINE, threads=threads),
            pin_engine=OnnxRuntimeEngine(bundle.file("pin_tower.onnx"), threads=threads),
        )

    def choose_query_engine(
        self,
        bundle: Bundle,
        name: str,
        *,
        threads: int = 2,
        gpu: Gpu | None = None,
        memory: EngineMemory | None = None,
    ) -> None:
        """Run the query tower with another engine from now on; calls that are under way end on the one before.

        Args:
            bundle: That this was loaded from.
            name: Of an engine; ``auto`` takes the fastest for one request of those that keep the bundle's parity rows
                on this machine (``trials`` tells what each did).
            threads: Threads that one graph may use.
            gpu: What an engine for a GPU runs on; the first one and no limit unless given.
            memory: Of what ``auto`` found before, which is then taken where it keeps the parity rows.

        Raises:
            EngineNotNowError: The engine may run here later; the one before goes on.
            ArtifactError: The engine does not keep the parity rows, or this machine cannot run it.
        """
        if name == self.engine:
            return
        names = engines_here() if name == "auto" else [name]

        def select(tried: Sequence[str]) -> Selection[Engine]:
            return select_query_engine(bundle, self._query_lookup, names=tried, threads=threads, gpu=gpu)

        selection = memory.choose(names, select) if memory is not None and name == "auto" else select(names)
        self._query_engine, self.trials = selection.loaded, selection.trials

    @property
    def engine(self) -> str:
        """Name of the engine that runs the query tower."""
        return self._query_engine.name

    @property
    def ad_lookup(self) -> TableLookup:
        """Encoded ads to the pin tower's flat input."""
        return self._ad_lookup

    def embed_query(self, query: Encoded) -> np.ndarray:
        """Query embeddings of encoded requests, float32 [R, H, D+2]."""
        return _embed(self._query_engine, self._query_lookup, query)

    def embed_ads(self, ads: Encoded) -> np.ndarray:
        """Pin embeddings of encoded ads, float32 [A, H, D+2]."""
        return _embed(self._pin_engine, self._ad_lookup, ads)

    def check_parity(self, tensors: Mapping[str, np.ndarray], *, source: str = PARITY_FILE) -> dict[str, float]:
        """Compare with what the trained module computed on saved rows; returns the largest error of each output.

        Raises:
            ArtifactError: An output is further away than ``PARITY_TOLERANCE``.
        """
        return check_parity(self._run, tensors, tolerance=PARITY_TOLERANCE, source=source)

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        query = Encoded(ids=inputs["query_ids"], floats=inputs["query_floats"])
        ads = Encoded(ids=inputs["ad_ids"], floats=inputs["ad_floats"])
        return {"query_embedding": self.embed_query(query), "pin_embedding": self.embed_ads(ads)}


def split_pin_embedding(embedding: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Separate vectors, whose precision an index may lower, from biases, which stay fp32.

    Args:
        embedding: Pin embeddings [A, H, D+2].

    Returns:
        Vectors [A, H * D] and biases [A, H].

    Example:
        >>> vectors, bias = split_pin_embedding(np.array([[[0.5, 2.0, -1.0, 1.0]]]))
        >>> vectors.tolist(), bias.tolist()
        ([[0.5, 2.0]], [[-1.0]])
    """
    num_ads, num_heads, width = embedding.shape
    vectors = embedding[:, :, : width - 2].reshape(num_ads, num_heads * (width - 2))
    return np.ascontiguousarray(vectors), np.ascontiguousarray(embedding[:, :, width - 2])


def quantise_vectors(vectors: np.ndarray, num_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors in int8, symmetric around zero, with one scale for each ad and head.

    ``vector ~= scale * integers``, ``scale = max |vector| / 127``: a value is off by half its scale at most.

    Args:
        vectors: fp32 [A, H * D], finite.
        num_heads: H.

    Returns:
        int8 [A, H * D] and scales fp32 [A, H].

    Example:
        >>> integers, scales = quantise_vectors(np.array([[1.0, -254.0, 0.0, 0.0]], np.float32), num_heads=2)
        >>> integers.tolist(), scales.tolist()
        ([[0, -127, 0, 0]], [[2.0, 0.0]])
    """
    by_head = vectors.reshape(len(vectors), num_heads, vectors.shape[1] // num_heads)
    scales = (np.abs(by_head).max(axis=2) / LARGEST_INT8).astype(np.float32)
    scales[scales < np.finfo(np.float32).tiny] = 0  # below it the quotient may overflow
    factors = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    integers = np.rint(by_head * factors[:, :, None])
    np.clip(integers, -LARGEST_INT8, LARGEST_INT8, out=integers)
    return integers.astype(np.int8).reshape(vectors.shape), scales


def score(
    query_embedding: np.ndarray, vectors: np.ndarray, bias: np.ndarray, scales: np.ndarray | None = None
) -> np.ndarray:
    """Logits of the candidates of one request: the dot product of the D+2 dimensions, taken in fp32.

    Args:
        query_embedding: [H, D+2].
        vectors: Rows of an index [C, H * D], fp32, fp16 or int8.
        bias: Their biases [C, H], fp32.
        scales: Of int8 vectors, one for each ad and head [C, H], fp32 (:func:`quantise_vectors`); None for others.

    Returns:
        float32 logits [C, H].

    Example:
        >>> query = np.array([[2.0, 0.0, 1.0, -3.0]], np.float32)
        >>> score(query, np.array([[0.5, 9.0]], np.float16), np.array([[0.25]], np.float32)).tolist()
        [[-1.75]]
    """
    num_heads, width = query_embedding.shape
    head_dim = width - 2
    logits: np.ndarray = np.empty((len(vectors), num_heads), np.float32)
    if score_rows(query_embedding, half_bits(vectors, bias), np.arange(len(vectors)), logits) is not None:
        return logits
    # One matrix product for all heads: column h holds head h's vector and zeros elsewhere.
    blocks = np.zeros((num_heads, head_dim, num_heads), np.float32)
    heads = np.arange(num_heads)
    blocks[heads, :, heads] = query_embedding[:, :head_dim]
    logits = as_float(vectors) @ blocks.reshape(num_heads * head_dim, num_heads)
    if scales is not None:
        logits *= scales
    logits += bias * query_embedding[:, head_dim]
    logits += query_embedding[:, head_dim + 1]
    return logits


def score_rows(query_embedding: np.ndarray, halves: Halves | None, rows: np.ndarray, logits: np.ndarray) -> int | None:
    """As :func:`score` of rows of an index, without gathering them first, where a kernel can; the same bits.

    Args:
        query_embedding: [H, D+2].
        halves: All of the index.
        rows: [C]; one below 0 gets no logits.
        logits: float32 [C, H], written to.

    Returns:
        How many rows are below 0; None where nothing was done.
    """
    kernels = compiled.kernels()
    if kernels is None or halves is None:
        return None
    if query_embedding.dtype != np.float32 or not query_embedding.flags.c_contiguous:
        return None
    num_without: int = kernels.score_half(*halves, rows.astype(np.int32, copy=False), query_embedding, logits)
    return num_without


def _embed(engine: Engine, lookup: TableLookup, rows: Encoded) -> np.ndarray:
    return engine.run({"flat": lookup(rows.ids, rows.floats).flat})["embedding"]
