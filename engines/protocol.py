"""What every engine offers: it runs one exported graph on arrays."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from contracts.errors import AdsieveError


class EngineNotNowError(AdsieveError):
    """An engine cannot run here now, and may later: another one serves meanwhile."""


class Engine(Protocol):
    """One loaded graph. Safe to call from several threads at once."""

    name: str
    """What runs the graph, such as ``onnxruntime_cpu``; shown in metrics."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output of the graph by name.

        Args:
            inputs: One C-contiguous array for each input of the graph, by name. Others are refused.
        """
        ...
