"""A heavy bundle as the service and the scorer run it: encoders, look-up and two exported graphs, without torch.

The request graph runs once for R requests, the ads' graph for B pairs of request and ad; :class:`RequestState` is what
passes between them. What never changes (tables, which feature reads which of them, what is pooled) is laid out once, at
load; a call brings ids and floats alone, from which values and masks are looked up. Shapes: R requests, B rows,
L sequence length, K tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from contracts.bundle import PARITY_FILE, Bundle
from contracts.encoding import Encoded, Encoder
from contracts.errors import MismatchError
from contracts.probability import sigmoid
from contracts.schema import FeatureSchema
from engines.gpu import Gpu
from engines.lookup import LookedUp, TableLookup
from engines.memory import EngineMemory
from engines.names import EXACT_ENGINE, GPU_ENGINES
from engines.parity import FP32_GATE, check_parity
from engines.protocol import Engine
from engines.select import GATES, Trial
from heavy_ranker.encoders import HeavyEncoders
from heavy_ranker.serving_engines import PREPARING_ENGINES, VARIABLE_LENGTHS, fastest, gpu_lengths, load_pair
from heavy_ranker.serving_rows import GroupedRows, similar_sizes

EVENTS, MASK = ".embeddings", ".mask"
LENGTH_BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Few lengths, so that an engine that prepares for a shape soon knows them all."""


@dataclass(frozen=True)
class RequestState:
    """The request stage's result for R requests: tensors by name, each with R as its first axis."""

    tensors: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def take(self, requests: np.ndarray) -> "RequestState":
        """Of some of the requests."""
        return RequestState({name: values[requests] for name, values in self.tensors.items()})


class HeavyServing(HeavyEncoders):
    """Scores encoded ads for encoded requests with the exported graphs of one bundle.

    Args:
        schema: Fitted schema of the bundle.
        tables: ``tables.<name>`` as :class:`~engines.lookup.TableLookup` takes them: float32, or int8 with scales.
        request_engine: Runs the request graph; None where ``ads_engine`` runs both graphs, from the first one's inputs.
        ads_engine: Runs the ads' graph.
        length_buckets: Lengths to which sequences may be cut, where the request graph takes any: padding that no
            request of a call needs goes before it costs anything. None: every sequence has its ``max_length``.

        prepared: Numbers of ads that the engine has compiled graphs for; one request with fewer is filled up to the
            next, which costs less than a graph for any size does.

    Attributes:
        engine: Name of the engine that serves.
        trials: What each engine did, where the fastest was chosen; else empty.
    """

    def __init__(
        self,
        schema: FeatureSchema,
        tables: Mapping[str, np.ndarray],
        *,
        request_engine: Engine | None,
        ads_engine: Engine,
        length_buckets: Sequence[int] = (),
        prepared: Sequence[int] = (),
    ) -> None:
        super().__init__(schema)
        self.engine = ads_engine.name
        self.trials: tuple[Trial, ...] = ()
        self._query_lookup = TableLookup(
            self.query_encoder.layout, tables, pool_sequences=False, length_buckets=length_buckets
        )
        self._ad_lookup = _lookup(self.ad_encoder, tables)
        self._pair_lookup = _lookup(self.pair_encoder, tables) if self.pair_encoder else None
        self._request_engine = request_engine
        self._ads_engine = ads_engine
        self._prepared = sorted(prepared)

    @property
    def engines(self) -> list[Engine]:
        """What runs its graphs."""
        return [engine for engine in (self._request_engine, self._ads_engine) if engine is not None]

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        *,
        threads: int = 2,
        engine: str = EXACT_ENGINE,
        prepared: Sequence[int] = (),
        gpu: Gpu | None = None,
        memory: EngineMemory | None = None,
    ) -> "HeavyServing":
        """Open the graphs and tables of a verified bundle.

        Args:
            bundle: Of kind ``heavy``.
            threads: Threads that one graph may use.
            engine: The name of one, by default an exact one that every machine has, so that the scores of a teacher do
                not depend on where they were made; ``auto`` takes the fastest that keeps the bundle's parity rows here
                (``trials`` tells what each did).
            gpu: What an engine for a GPU runs on; the first one and no limit unless given.
            memory: Of what ``auto`` found before, which is then taken where it keeps the parity rows.
            prepared: Numbers of ads that most requests have. OpenVINO compiles its graphs for each of them once more,
                which makes such calls faster and costs half a second and a copy of the weights each. Sequences are
                then taken whole.

        Raises:
            ConfigError: No engine has this name.
            AdsieveError: The named engine cannot run here.
            ArtifactError: A graph cannot be loaded; with ``auto``, by no engine.
        """
        if engine == "auto":
            chosen = fastest(
                bundle,
                lambda name: cls._open(bundle, name, threads, prepared, gpu),
                run=lambda serving: serving.run,
                memory=memory,
            )
            chosen.loaded.trials = chosen.trials
            return chosen.loaded
        return cls._open(bundle, engine, threads, prepared, gpu)

    @classmethod
    def _open(
        cls, bundle: Bundle, engine: str, threads: int, prepared: Sequence[int], gpu: Gpu | None
    ) -> "HeavyServing":
        pair = load_pair(bundle, engine, threads=threads, prepared=prepared, gpu=gpu)
        takes_whole = engine in PREPARING_ENGINES and bool(prepared)
        may_cut = bool(bundle.manifest.dims.get(VARIABLE_LENGTHS)) and not takes_whole
        lengths = gpu_lengths(bundle) if engine in GPU_ENGINES else LENGTH_BUCKETS
        return cls(
            bundle.schema,
            bundle.tensors(),
            request_engine=pair.request,
            ads_engine=pair.ads,
            length_buckets=lengths if may_cut else (),
            prepared=prepared if engine in PREPARING_ENGINES else (),
        )

    def encode_request(self, query: Encoded) -> RequestState:
        """Everything that no ad can change, computed once for R encoded requests."""
        inputs = request_inputs(self._query_lookup(query.ids, query.floats))
        return RequestState(inputs if self._request_engine is None else self._request_engine.run(inputs))

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
        inputs = {"ad_flat": self._ad_lookup(ads.ids, ads.floats).flat}
        if pair is not None and self._pair_lookup is not None:
            inputs["pair_flat"] = self._pair_lookup(pair.ids, pair.floats).flat
        sets = similar_sizes(np.bincount(request_index, minlength=len(state)))
        if len(sets) == 1 and len(sets[0]) == len(state):
            return self._score_together(state, inputs, request_index)
        logits = np.empty((len(request_index), len(self.tasks)), np.float32)
        for requests in sets:
            at = np.flatnonzero(np.isin(request_index, requests))
            rows = {name: values[at] for name, values in inputs.items()}
            logits[at] = self._score_together(state.take(requests), rows, np.searchsorted(requests, request_index[at]))
        return logits

    def _score_together(
        self, state: RequestState, rows: Mapping[str, np.ndarray], request_index: np.ndarray
    ) -> np.ndarray:
        layout = GroupedRows(request_index, len(state), widths=self._prepared if len(state) == 1 else ())
        grouped = {name: layout.group(values) for name, values in rows.items()}
        return layout.ungroup(self._ads_engine.run(state.tensors | grouped)["logits"])

    def check_parity(self, tensors: Mapping[str, np.ndarray], *, source: str = PARITY_FILE) -> dict[str, float]:
        """Compare with what the trained module computed on saved rows; returns the largest error of each output.

        Raises:
            ArtifactError: A probability is further away than the engine's gate allows, or the order of rows changed.
        """
        gate = GATES.get(self.engine, FP32_GATE)
        return check_parity(
            self.run,
            tensors,
            tolerance=gate.tolerance,
            min_rank_correlation=gate.min_rank_correlation,
            source=source,
        )

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Probabilities of rows as ``parity.safetensors`` holds them: ids and floats of each side, and the index."""
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
