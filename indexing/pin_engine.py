"""Which engine runs the pin tower over a catalogue: of those that keep the bundle's parity rows, the fastest.

Parity is measured on what an embedding is for: the probabilities ``sigmoid(dot)`` of the saved requests with the saved
ads. Calls are as the build makes them: pieces of ``ROWS`` ads, one thread each, several at once.

Shapes: R requests, A ads, H heads, D width of a head's vector, F width of the flat input.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import numpy as np

from contracts.bundle import GRAPHS, PARITY_FILE, Bundle
from contracts.encoding import Encoded
from contracts.errors import AdsieveError
from contracts.layout import side_layout
from contracts.progress import tell
from engines.lookup import TableLookup
from engines.memory import EngineMemory
from engines.names import ENGINES, GPU_ENGINES, engines_here, unknown_engine
from engines.parity import Run
from engines.protocol import Engine
from engines.select import GATES, Candidate, Selection, select_engine
from towers.tower_engine import open_tower, pair_probabilities

Spread = Callable[[Callable[[int], np.ndarray], Iterable[int]], Iterable[np.ndarray]]

ROWS = 1024
"""Ads of one call: their activations stay in a core's cache, and the work of a call is large beside its start."""
TIMED_ROWS = 256
"""Ads of one call while engines are compared: enough to tell them apart."""
GPU_ROWS = (1024, 4096)
PIN_GRAPH = GRAPHS["two_tower"][1]
SECONDS = 0.1
OPENING_LIMIT_S = 300.0
"""An engine opens in seconds; one that a library has not opened by then is stuck, and a nightly job must not be."""
TOLD_AFTER_S = 10.0


def open_pin_engine(bundle: Bundle, name: str, *, threads: int) -> Engine:
    """Open the pin tower of a bundle with one engine, for ``threads`` calls at once.

    Raises:
        ConfigError: No engine has this name.
        AdsieveError: The engine is not installed, or the machine lacks what it needs.
        ArtifactError: The graph cannot be loaded.
    """
    return open_tower(bundle, PIN_GRAPH, name, threads=threads, calls=threads, rows=ROWS, gpu_rows=GPU_ROWS)


class OpeningEngines:
    """The CPU's engines that ``name`` may mean, opened in threads while their caller does something else.

    The threads are daemons: one that a library keeps for ever does not keep the process.

    Args:
        bundle: Of the pin tower.
        name: ``auto``, or an engine's name.
        threads: Calls that will run at once.
        open_engine: Opens one.
        limit_s: How long :meth:`take` waits for those that are not open yet.
    """

    def __init__(
        self,
        bundle: Bundle,
        name: str,
        *,
        threads: int,
        open_engine: Callable[..., Engine] = open_pin_engine,
        limit_s: float = OPENING_LIMIT_S,
    ) -> None:
        names = [known for known in ENGINES if name in ("auto", known) and known not in GPU_ENGINES]
        self._limit_s = limit_s
        self._deadline: float | None = None
        self._opening: dict[str, Future[Engine]] = {
            known: _opened(partial(open_engine, bundle, known, threads=threads), known) for known in names
        }

    def take(self, name: str) -> Engine | None:
        """An engine, once all are open, so that nothing disturbs what follows; None of one that is not opened here.

        It is given once, and held here no longer. Raises what opening it raised, and an AdsieveError where it is not
        open after the limit, which counts from the first call.
        """
        self._wait()
        opened = self._opening.pop(name, None)
        if opened is None:
            return None
        if not opened.done():
            raise AdsieveError(f"was not open after {self._limit_s:g} s of waiting, so the build goes on without it")
        return opened.result()

    def _wait(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._limit_s
            wait(self._opening.values(), timeout=min(TOLD_AFTER_S, self._limit_s))
            late = [known for known, opened in self._opening.items() if not opened.done()]
            if late:
                tell(f"waiting for {', '.join(late)} to open, at most {self._limit_s:g} s")
        wait(self._opening.values(), timeout=max(self._deadline - time.monotonic(), 0.0))


def _opened(open_one: Callable[[], Engine], name: str) -> "Future[Engine]":
    """What ``open_one`` gives or raises, from a thread of its own."""
    opened: Future[Engine] = Future()

    def run() -> None:
        try:
            opened.set_result(open_one())
        except BaseException as error:  # as an executor does: raised where it is asked for
            opened.set_exception(error)

    threading.Thread(target=run, name=f"open-{name}", daemon=True).start()
    return opened


def choose_pin_engine(
    bundle: Bundle,
    lookup: TableLookup,
    *,
    name: str = "auto",
    threads: int = 1,
    opening: OpeningEngines | None = None,
    memory: EngineMemory | None = None,
) -> tuple[str, Engine]:
    """The engine of this name, or the fastest that passes on this machine; its name, and the engine.

    Args:
        bundle: With parity rows of both sides.
        lookup: Of the ad side.
        name: ``auto``, or an engine's name; the build of a name fails where it does not pass.
        threads: Calls that will run at once.
        opening: Engines of this name that are being opened.
        memory: Of the fastest for such towers, which ``auto`` takes where it passes, without comparing others.
    Raises:
        ArtifactError: No engine that was asked for passes; the message says for each what it lacks.
        ConfigError: No engine has this name.
    """
    if name not in ("auto", *ENGINES):
        raise unknown_engine(name)
    select = partial(select_pin_engine, bundle, lookup, threads=threads, opening=opening)
    if name != "auto":
        return name, select([name]).loaded
    selection = select(engines_here()) if memory is None else memory.choose(engines_here(), select)
    return selection.name, selection.loaded


def pin_memory(bundle: Bundle, *, threads: int) -> EngineMemory:
    """Where the fastest engine is remembered for pin towers of one shape, for ``threads`` calls at once.

    A nightly job builds with the same tower, trained anew, and which engine is the fastest depends on the graph's
    shape, not on its weights.
    """
    width = side_layout(bundle.schema, "ad").flat_dim(pool_sequences=True)
    return EngineMemory(["pin tower", width, bundle.manifest.dims, bundle.config], threads=threads)


def select_pin_engine(
    bundle: Bundle,
    lookup: TableLookup,
    names: Sequence[str],
    *,
    threads: int,
    opening: OpeningEngines | None = None,
) -> Selection[Engine]:
    """Try engines one after another on the parity rows, and time a block of calls as the build makes them."""
    saved = bundle.tensors(PARITY_FILE)
    source = str(bundle.file(PARITY_FILE))
    flat = lookup(saved["in.ad_ids"], saved["in.ad_floats"]).flat
    query = saved["out.query_embedding"]
    expected = pair_probabilities(query, saved["out.pin_embedding"])
    rows = np.arange(TIMED_ROWS * threads) % len(flat)

    def load(name: str) -> Engine:
        opened = opening.take(name) if opening is not None else None
        return open_pin_engine(bundle, name, threads=threads) if opened is None else opened

    return select_engine(
        [Candidate(name=name, load=partial(load, name), gate=GATES[name]) for name in names],
        {"in.flat": flat, "out.probabilities": expected},
        run=lambda engine: _probabilities_of(engine, query, len(flat), threads),
        source=source,
        timed_inputs={"flat": flat[rows]},
        seconds=SECONDS if len(names) > 1 else 0.0,
    )


def embed_in_pieces(engine: Engine, lookup: TableLookup, ads: Encoded, spread: Spread = map) -> np.ndarray:
    """Pin embeddings of encoded ads, looked up and computed ``ROWS`` at once: float32 [A, H, D+2].

    Args:
        spread: Calls a function for each piece and gives its results in order, such as the ``map`` of a pool.
    """

    def embedded(start: int) -> np.ndarray:
        piece = slice(start, start + ROWS)
        return engine.run({"flat": lookup(ads.ids[piece], ads.floats[piece]).flat})["embedding"]

    starts = range(0, max(len(ads), 1), ROWS)
    pieces = iter(spread(embedded, starts))
    first = next(pieces)
    if len(starts) == 1:
        return first
    whole = np.empty((len(ads), *first.shape[1:]), first.dtype)
    whole[:ROWS] = first
    for start, piece in zip(starts[1:], pieces, strict=True):
        whole[start : start + ROWS] = piece  # one after another: all pieces and the whole are never held at once
    return whole


def _probabilities_of(engine: Engine, query: np.ndarray, num_saved: int, threads: int) -> Run:
    """How an engine runs: the first ``num_saved`` ads to probabilities. A longer input is for its time."""

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        flat = inputs["flat"]
        parts = [flat[start : start + TIMED_ROWS] for start in range(0, len(flat), TIMED_ROWS)]
        with ThreadPoolExecutor(threads) as pool:
            pins = list(pool.map(lambda part: engine.run({"flat": part})["embedding"], parts))
        return {"probabilities": pair_probabilities(query, np.concatenate(pins)[:num_saved])}

    return run
