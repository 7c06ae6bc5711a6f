"""Which engines run here, how near each is to what it should compute, and how long a call takes.

Tried on a small drawn query tower, or on the models of a bundle, as the service itself tries them. Shapes: B rows, A
ads, E embedding.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from contracts.bundle import Bundle, open_bundle
from contracts.errors import AdsieveError
from contracts.probability import sigmoid
from engines.names import EXACT_ENGINE, GPU_ENGINES, engines_here, plans_directory
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.openvino_cpu import OpenVinoEngine
from engines.parity import Run
from engines.protocol import Engine
from engines.select import GATES, Candidate, Trial, select_engine
from service.doctor.drawn_tower import DIMS, INPUT, OUTPUT, drawn_rows, write_drawn_tower
from service.doctor.findings import Finding

SECTION = "engines"
NUM_ADS, SEED, SECONDS = 32, 2, 0.2
NEED_A_BUNDLE = frozenset({"torch_cuda"})
"""Run a program that lies beside a bundle's graphs."""
CHOSEN = "fastest"


def engine_findings(bundle: Path | None, *, threads: int) -> Iterator[Finding]:
    """What each engine does here.

    Args:
        bundle: Whose models are tried; None draws a small tower.
        threads: Of one call.
    """
    try:
        what, trials = _of_drawn_tower(threads) if bundle is None else _of_bundle(open_bundle(bundle), threads)
    except AdsieveError as error:
        step = "pip install -r requirements/serve.txt" if bundle is None else "give --bundle a bundle that is whole"
        yield Finding(section=SECTION, name="all", standing="fail", found=str(error), next_step=step)
        return
    for trial in trials:
        yield _finding(trial, what)


def _finding(trial: Trial, what: str) -> Finding:
    told = str(trial).removeprefix(f"{trial.name} ").replace("serves: ", f"{CHOSEN} for {what}: ")
    works, is_exact = trial.status in ("serves", "passed"), trial.name == EXACT_ENGINE
    step = None
    if not works:
        refused = "it is left out where engines are chosen: ADSIEVE_QUERY_ENGINE and ADSIEVE_HEAVY_ENGINE may stay auto"
        step = "pip install -r requirements/serve.txt" if is_exact else refused
    return Finding(
        section=SECTION,
        name=trial.name,
        standing="ok" if works else "fail" if is_exact else "note",
        found=told,
        next_step=step,
        facts={"status": trial.status, "error": trial.error, "ms": trial.ms, "reason": trial.reason},
    )


def _of_drawn_tower(threads: int) -> tuple[str, Sequence[Trial]]:
    """Every engine on the drawn tower; as in serving, what counts are probabilities of drawn ads."""
    drawn = drawn_rows()
    pins = np.random.default_rng(SEED).normal(0, DIMS[-1] ** -0.5, (DIMS[-1], NUM_ADS)).astype(np.float32)
    expected = {f"in.{INPUT}": drawn[f"in.{INPUT}"], "out.probabilities": sigmoid(drawn[f"out.{OUTPUT}"] @ pins)}
    names = [name for name in engines_here() if name not in NEED_A_BUNDLE]
    with tempfile.TemporaryDirectory() as folder:
        graph = write_drawn_tower(Path(folder) / "drawn.onnx")
        selection = select_engine(
            [Candidate(name=name, load=partial(_open, graph, name, threads), gate=GATES[name]) for name in names],
            expected,
            run=partial(_probabilities, pins=pins),
            source="the drawn tower",
            timed_inputs={INPUT: drawn[f"in.{INPUT}"][:1]},
            seconds=SECONDS,
        )
    return "one row of a small tower", selection.trials


def _open(graph: Path, name: str, threads: int) -> Engine:
    if name == "onnxruntime_cpu":
        return OnnxRuntimeEngine(graph, threads=threads)
    if name in GPU_ENGINES:
        from engines.tensorrt_gpu import open_tensorrt

        return open_tensorrt(graph, buckets={"rows": (1, 64)}, cache=plans_directory("doctor"), splits=("rows",))
    return OpenVinoEngine(
        graph, threads=threads, precision="bf16" if name == "openvino_bf16" else "fp32", buckets={"rows": (1,)}
    )


def _probabilities(engine: Engine, *, pins: np.ndarray) -> Run:
    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"probabilities": sigmoid(engine.run(inputs)[OUTPUT] @ pins)}

    return run


def _of_bundle(bundle: Bundle, threads: int) -> tuple[str, Sequence[Trial]]:
    """Every engine on the model of a bundle that a request waits for."""
    if bundle.manifest.kind == "heavy":
        from heavy_ranker.serving import HeavyServing

        return "one request of many ads", HeavyServing.load(bundle, engine="auto", threads=threads).trials
    from towers.serving import TwoTowerServing

    tower = TwoTowerServing.load(bundle, threads=threads)
    tower.choose_query_engine(bundle, "auto", threads=threads)
    return "one request", tower.trials
