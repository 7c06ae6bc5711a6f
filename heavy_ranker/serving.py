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
        inputs = request_inputs(self._query_lookup(query.ids, query.floats))
        masks = {name: values for name, values in inputs.items() if name.endswith(MASK)}
        return RequestState(self._request_engine.run(inputs) | masks)

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
        inputs = {
            **state.tensors,
            "request_index": request_index,
            "ad_flat": self._ad_lookup(ads.ids, ads.floats).flat,
        }
        if pair is not None and self._pair_lookup is not None:
            inputs["pair_flat"] = self._pair_lookup(pair.ids, pair.floats).flat
        return self._ads_engine.run(inputs)["logits"]

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
