"""A heavy bundle as the service and the scorer run it: encoders, look-up and two exported graphs, without torch.

The request graph runs once for R requests, the ads' graph for B pairs of request and ad; :class:`RequestState` is what
passes between them. Shapes: R requests, B rows, L sequence length, K tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from contracts.bundle import PARITY_FILE, Bundle
from contracts.encoding import Encoded, Encoder
from contracts.errors import MismatchError
from contracts.probability import sigmoid
from contracts.schema import FeatureSchema
from engines.lookup import LookedUp, TableLookup
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.parity import check_parity
from engines.protocol import Engine

REQUEST_GRAPH, ADS_GRAPH = "request.onnx", "ads.onnx"
EVENTS, MASK = ".embeddings", ".mask"
PARITY_TOLERANCE = 1e-5
"""Largest error of a probability: fp32 engines sum in other orders."""


@dataclass(frozen=True)
class RequestState:
    """The request stage's result for R requests: tensors by name, each with R as its first axis."""

    tensors: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))


class GroupedRows:
    """Brings the rows of R requests to ``[R, C, ...]`` as the ads' graph takes them, and its result back to rows.

    A request with fewer than C rows, the most that one has, is filled up with zeros.

    Args:
        request_index: int64 [B], each row's request.
        num_requests: R.

    Example:
        >>> layout = GroupedRows(np.array([1, 0, 1]), num_requests=2)
        >>> layout.group(np.array([[1.0], [2.0], [3.0]])).squeeze(-1).tolist()
        [[2.0, 0.0], [1.0, 3.0]]
        >>> layout.ungroup(layout.group(np.array([[1.0], [2.0], [3.0]]))).tolist()
        [[1.0], [2.0], [3.0]]
    """

    def __init__(self, request_index: np.ndarray, num_requests: int) -> None:
        counts = np.bincount(request_index, minlength=num_requests)
        order = np.argsort(request_index, kind="stable")
        within = np.empty_like(order)
        within[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._shape = num_requests, int(counts.max(initial=0))
        self._places = request_index * self._shape[1] + within

    def group(self, rows: np.ndarray) -> np.ndarray:
        """[B, F] to [R, C, F]."""
        grouped = np.zeros((self._shape[0] * self._shape[1], rows.shape[1]), rows.dtype)
        grouped[self._places] = rows
        return grouped.reshape(*self._shape, rows.shape[1])

    def ungroup(self, grouped: np.ndarray) -> np.ndarray:
        """[R, C, K] to [B, K]."""
        return grouped.reshape(-1, grouped.shape[2])[self._places]


class HeavyServing:
    """Scores encoded ads for encoded requests with the exported graphs of one bundle.

    Args:
        schema: Fitted schema of the bundle.
        tables: ``tables.<name>`` to float32 [rows, dim].
        request_engine: Runs ``request.onnx``.
        ads_engine: Runs ``ads.onnx``.
    """

    def __init__(
        self, schema: FeatureSchema, tables: Mapping[str, np.ndarray], *, request_engine: Engine, ads_engine: Engine
    ) -> None:
        self.tasks = schema.tasks
        self.query_encoder = Encoder(schema, "query")
        self.ad_encoder = Encoder(schema, "ad")
        self.pair_encoder = Encoder(schema, "pair") if schema.side_features("pair") else None
        self._query_lookup = _lookup(self.query_encoder, tables)
        self._ad_lookup = _lookup(self.ad_encoder, tables)
        self._pair_lookup = _lookup(self.pair_encoder, tables) if self.pair_encoder else None
        self._request_engine = request_engine
        self._ads_engine = ads_engine

    @classmethod
    def load(cls, bundle: Bundle, *, threads: int = 2) -> "HeavyServing":
        """Open the graphs and tables of a verified bundle on the CPU.

        Args:
            bundle: Of kind ``heavy``.
            threads: Threads that one graph may use.
        """
        return cls(
            bundle.schema,
            bundle.tensors(),
            request_engine=OnnxRuntimeEngine(bundle.file(REQUEST_GRAPH), threads=threads),
            ads_engine=OnnxRuntimeEngine(bundle.file(ADS_GRAPH), threads=threads),
        )

    def encode_request(self, query: Encoded) -> RequestState:
        """Everything that no ad can change, computed once for R encoded requests."""
        return RequestState(self._request_engine.run(request_inputs(self._query_lookup(query.ids, query.floats))))

    def score(self, state: RequestState, ads: Encoded, pair: Encoded | None, request_index: np.ndarray) -> np.ndarray:
        """Per-impression logits of B pairs, float32 [B, K], tasks in the schema's order.

        Args:
            state: Of R requests.
            ads: The ad of each row [B].
            pair: The pair features of each row [B]; given exactly when the schema has any.
            request_index: The request of each row in ``state``, int64 [B].

        Raises:
            MismatchError: ``pair`` is missing or not wanted.
        """
        if (pair is None) != (self._pair_lookup is None):
            raise MismatchError(f"pair features: the schema {'has' if pair is None else 'lacks'} them")
        layout = GroupedRows(request_index, len(state))
        inputs = state.tensors | {"ad_flat": layout.group(self._ad_lookup(ads.ids, ads.floats).flat)}
        if pair is not None and self._pair_lookup is not None:
            inputs["pair_flat"] = layout.group(self._pair_lookup(pair.ids, pair.floats).flat)
        return layout.ungroup(self._ads_engine.run(inputs)["logits"])

    def check_parity(self, tensors: Mapping[str, np.ndarray], *, source: str = PARITY_FILE) -> dict[str, float]:
        """Compare with what the trained module computed on saved rows; returns the largest error of each output.

        Raises:
            ArtifactError: A probability is further away than ``PARITY_TOLERANCE``.
        """
        return check_parity(self._run, tensors, tolerance=PARITY_TOLERANCE, source=source)

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        query, ad = (Encoded(ids=inputs[f"{side}_ids"], floats=inputs[f"{side}_floats"]) for side in ("query", "ad"))
        pair = Encoded(ids=inputs["pair_ids"], floats=inputs["pair_floats"]) if self.pair_encoder else None
        logits = self.score(self.encode_request(query), ad, pair, inputs["request_index"])
        return {"probabilities": sigmoid(logits).astype(np.float32)}


def request_inputs(looked_up: LookedUp) -> dict[str, np.ndarray]:
    """Inputs of the request graph by name: ``flat``, and ``<sequence>.embeddings`` and ``.mask`` of each sequence."""
    inputs = {"flat": looked_up.flat}
    for name, (embeddings, mask) in looked_up.sequences.items():
        inputs[f"{name}{EVENTS}"], inputs[f"{name}{MASK}"] = embeddings, mask.astype(np.float32)
    return inputs


def _lookup(encoder: Encoder, tables: Mapping[str, np.ndarray]) -> TableLookup:
    return TableLookup(encoder.layout, tables, pool_sequences=False)
