"""Heavy rankers in memory: opened and verified, or known well enough to ask another host."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.bundle import PARITY_FILE, Bundle
from contracts.encoding import Encoded, Encoder
from contracts.schema import FeatureSchema
from engines.gpu import Gpu
from engines.memory import EngineMemory
from engines.names import EXACT_ENGINE
from engines.protocol import EngineNotNowError
from heavy_ranker.encoders import HeavyEncoders
from heavy_ranker.serving import HeavyServing
from service.engine_memory import engine_memory

log = logging.getLogger(__name__)

REMOTE = "remote"
"""The engine of a heavy ranker that another host runs."""


@dataclass(frozen=True, kw_only=True)
class LoadedHeavy:
    """A heavy ranker, shared by the releases that name its version.

    ``serving`` is None where another host runs it; ``no_pair`` is one row of missing pair features. ``batches``
    tells whether requests share its calls, None where that was not tried; ``shape`` names what is as fast on its
    engine.
    """

    version: str
    schema: FeatureSchema
    encoders: HeavyEncoders
    serving: HeavyServing | None
    no_pair: Encoded | None
    batches: bool | None = None
    shape: str = ""

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.schema.tasks

    @property
    def engine(self) -> str:
        """Name of the engine that runs it."""
        return REMOTE if self.serving is None else self.serving.engine


def load_heavy(
    bundle: Bundle, *, threads: int, engine: str, survivors: Sequence[int], gpu: Gpu | None = None
) -> LoadedHeavy:
    """Open a verified bundle.

    Args:
        threads: Threads of one operator of one graph.
        engine: The name of an engine, ``auto``, or ``remote``: then no graph is opened.
        survivors: Numbers of survivors that most requests have, for which an engine may prepare.
        gpu: What an engine for a GPU runs on. One that cannot run there now is replaced by the exact one, with a
            warning.

    Raises:
        ArtifactError: The engine does not reproduce the trained model.
    """
    memory = engine_memory("heavy ranker", bundle, threads, list(survivors))
    serving = None if engine == REMOTE else _serving(bundle, threads, engine, survivors, gpu, memory)
    encoders = HeavyEncoders(bundle.schema) if serving is None else serving
    return LoadedHeavy(
        version=bundle.manifest.version,
        schema=bundle.schema,
        encoders=encoders,
        serving=serving,
        no_pair=missing_row(encoders.pair_encoder) if encoders.pair_encoder else None,
        shape=memory.path.stem,
    )


def missing_row(encoder: Encoder) -> Encoded:
    """One row of which nothing is known."""
    return encoder.encode({}, num_rows=1, event_time=None, absent="missing").encoded


def _serving(
    bundle: Bundle, threads: int, engine: str, survivors: Sequence[int], gpu: Gpu | None, memory: EngineMemory
) -> HeavyServing:
    try:
        serving = HeavyServing.load(bundle, threads=threads, engine=engine, prepared=survivors, gpu=gpu, memory=memory)
    except EngineNotNowError as error:
        log.warning("heavy ranker %s runs on %s meanwhile: %s", bundle.manifest.version, EXACT_ENGINE, error)
        serving = HeavyServing.load(bundle, threads=threads, engine=EXACT_ENGINE)
    if not serving.trials:
        serving.check_parity(bundle.tensors(PARITY_FILE), source=str(bundle.path))
    trials = "; ".join(map(str, serving.trials))
    log.info("heavy ranker %s runs on %s: %s", bundle.manifest.version, serving.engine, trials)
    return serving


def usual_survivors(survivors: int) -> tuple[int, ...]:
    """Numbers of survivors that a heavy ranker's engine prepares for: the usual one, and a third for short lists.

    Example:
        >>> usual_survivors(100)
        (34, 100)
    """
    return tuple(sorted({-(-survivors // 3), survivors}))
