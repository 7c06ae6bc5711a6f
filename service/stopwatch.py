"""Takes the time of a request by stage."""

import time
from dataclasses import dataclass, field

from service.api import Timing


@dataclass
class Stopwatch:
    """Milliseconds by stage, of all its parts together.

    ``start`` is ``time.perf_counter()`` when the request arrived; decoding came first.
    """

    start: float = field(default_factory=time.perf_counter)
    stages: dict[str, float] = field(default_factory=dict)

    def stage(self, name: str) -> "_Stage":
        """Within it a stage runs."""
        return _Stage(self, name)

    def note(self, name: str, began: float) -> None:
        """A stage that began then (``time.perf_counter()``) is over."""
        self.stages[name] = self.stages.get(name, 0.0) + 1000 * (time.perf_counter() - began)

    def timing(self) -> Timing:
        spent = {name: self.stages.get(name, 0.0) for name in ("decode", "query_tower", "light", "heavy")}
        return Timing(**spent, total=1000 * (time.perf_counter() - self.start))


class _Stage:
    """Takes the time of a stage, whether it ends in an error or not."""

    __slots__ = ("_began", "_name", "_watch")

    def __init__(self, watch: Stopwatch, name: str) -> None:
        self._watch, self._name = watch, name

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        self._watch.note(self._name, self._began)
