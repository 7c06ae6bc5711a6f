"""Which engine runs the query tower of requests: one that keeps the bundle's parity rows, and is fast for one row.

Parity is measured on what an embedding is for: the probabilities ``sigmoid(dot)`` of the saved requests with the saved
ads. Shapes: R requests, A ads, H heads, D width of a head's vector.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from contracts.bundle import GRAPHS, PARITY_FILE, Bundle
from engines.gpu import Gpu
from engines.lookup import TableLookup
from engines.parity import Run
from engines.protocol import Engine
from engines.select import GATES, Candidate, Selection, select_engine
from towers.tower_engine import open_tower, pair_probabilities

QUERY_GRAPH = GRAPHS["two_tower"][0]
GPU_ROWS = (1, 4, 16, 64)
SECONDS = 0.1


def open_query_engine(bundle: Bundle, name: str, *, threads: int, gpu: Gpu | None = None) -> Engine:
    """Open the query tower of a bundle with one engine.

    Raises:
        ConfigError: No engine has this name.
        AdsieveError: The engine is not installed, or the machine lacks what it needs.
        ArtifactError: The graph cannot be loaded.
    """
    return open_tower(bundle, QUERY_GRAPH, name, threads=threads, calls=1, rows=1, gpu_rows=GPU_ROWS, gpu=gpu)


def select_query_engine(
    bundle: Bundle, lookup: TableLookup, *, names: Sequence[str], threads: int, gpu: Gpu | None = None
) -> Selection[Engine]:
    """Try engines one after another on the parity rows, and time them on one row.

    Args:
        bundle: With parity rows of both sides.
        lookup: Of the query side.
        names: Engines to try, in order of preference.
        gpu: What an engine for a GPU runs on; the first one and no limit unless given.

    Raises:
        ArtifactError: None passes; the message says for each what it lacks.
    """
    saved = bundle.tensors(PARITY_FILE)
    flat, pins = lookup(saved["in.query_ids"], saved["in.query_floats"]).flat, saved["out.pin_embedding"]
    expected = pair_probabilities(saved["out.query_embedding"], pins)
    load = partial(open_query_engine, bundle, threads=threads, gpu=gpu)
    return select_engine(
        [Candidate(name=name, load=partial(load, name), gate=GATES[name]) for name in names],
        {"in.flat": flat, "out.probabilities": expected},
        run=partial(_probabilities_of, pins=pins),
        source=str(bundle.file(PARITY_FILE)),
        timed_inputs={"flat": flat[:1]},
        seconds=SECONDS,
    )


def _probabilities_of(engine: Engine, *, pins: np.ndarray) -> Run:
    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        query = engine.run({"flat": inputs["flat"]})["embedding"]
        return {"probabilities": pair_probabilities(query, pins)}

    return run
