"""TensorRT's plans while a service runs: built in a thread of their own, another engine serves until they are there.

A plan takes minutes to build, and is looked for under another key whenever graph, GPU, precision, library or shapes are
others. Whoever asks for one that is not there gets an error that says so, and asks again once :attr:`PlanBuilds.count`
has grown.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import ArtifactError
from engines.protocol import EngineNotNowError
from engines.tensorrt_build import Precision, Shapes, cached_plan, plan_file

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What a plan is built from, and where it is kept.

    Args:
        library: ``tensorrt`` or ``tensorrt_rtx``.
        graph: The ``.onnx`` file.
        directory: Of plans.
        shapes: Of all inputs for each bucket.
        precision: Of matrix products.
        architecture: Of the GPU, such as ``sm90``.
    """

    library: Any
    graph: Path
    directory: Path
    shapes: Sequence[Shapes]
    precision: Precision
    architecture: str

    @property
    def file(self) -> Path:
        """Where the plan lies once it is built."""
        return plan_file(
            self.library,
            self.graph,
            self.directory,
            shapes=self.shapes,
            precision=self.precision,
            architecture=self.architecture,
        )


def built_now(request: PlanRequest) -> bytes:
    """The plan, built first where it is not cached."""
    return cached_plan(
        request.library,
        request.graph,
        request.directory,
        shapes=request.shapes,
        precision=request.precision,
        architecture=request.architecture,
    )


class PlanBuilds:
    """Builds plans one after another in a thread that ends when nothing is left to build. May be asked by any thread.

    Args:
        build: Makes a plan and puts it into its file.
    """

    def __init__(self, build: Callable[[PlanRequest], bytes] = built_now) -> None:
        self._build, self._lock = build, threading.Lock()
        self._waiting: dict[Path, PlanRequest] = {}
        self._failed: dict[Path, str] = {}
        self._thread: threading.Thread | None = None
        self.count = 0

    def __call__(self, request: PlanRequest) -> bytes:
        """The plan of a request.

        Raises:
            EngineNotNowError: It is being built.
            ArtifactError: It could not be built.
        """
        file = request.file
        if file.is_file():
            return file.read_bytes()
        with self._lock:
            if file in self._failed:
                raise ArtifactError(self._failed[file])
            self._waiting.setdefault(file, request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="plans", daemon=True)
                self._thread.start()
        raise EngineNotNowError(f"{request.graph}: its plan for {request.architecture} is being built")

    @property
    def num_waiting(self) -> int:
        """Plans that are being built or wait for it."""
        return len(self._waiting)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                file, request = next(iter(self._waiting.items()))
            try:
                self._build(request)
                log.info("the plan of %s for %s is built", request.graph, request.architecture)
            except Exception as error:  # whatever a builder raises, the engine that serves meanwhile goes on
                log.error("the plan of %s cannot be built: %s", request.graph, error)
                self._failed[file] = f"{request.graph}: its plan cannot be built: {error}"
            with self._lock:
                del self._waiting[file]
                self.count += 1
