"""How a process uses its GPU: the budget that everything there shares, and how TensorRT's plans come about."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engines.device_memory import DeviceMemory
from engines.plan_builds import PlanRequest, built_now


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One device of one process.

    Args:
        device: As torch names it.
        memory: The budget; everything that is put there holds its share.
        plan: Gives the plan of a graph; by default it is built at once where it is not cached.
    """

    device: str = "cuda"
    memory: DeviceMemory = field(default_factory=DeviceMemory)
    plan: Callable[[PlanRequest], bytes] = built_now
