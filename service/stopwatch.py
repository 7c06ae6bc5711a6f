"""Takes the time of a request by stage."""

import time

import msgspec

from service.api import Timing


class Stopwatch(msgspec.Struct):
    """Milliseconds by stage, of all its parts together.

    ``start`` is ``time.perf_counter()`` when the request arrived; decoding came first.
    """

    start: float = msgspec.field(default_factory=time.perf_counter)
    stages: dict[str, float] = {}

    def stage(self, name: str) -> "_Stage":
        """Within it a stage runs."""
        return _Stage(self.stages, name, time.perf_counter())

    def note(self, name: str, began: float) -> None:
        """A stage that began then (``time.perf_counter()``) is over."""
        self.stages[name] = self.stages.get(name, 0.0) + 1000 * (time.perf_counter() - began)

    def timing(self) -> Timing:
        spent = self.stages.get
        return Timing(
            decode=spent("decode", 0.0),
            query_tower=spent("query_tower", 0.0),
            light=spent("light", 0.0),
            heavy=spent("heavy", 0.0),
            total=1000 * (time.perf_counter() - self.start),
        )


class _Stage(msgspec.Struct):
    """Takes the time of a stage from ``began`` on, whether it ends in an error or not."""

    stages: dict[str, float]
    name: str
    began: float

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        self.stages[self.name] = self.stages.get(self.name, 0.0) + 1000 * (time.perf_counter() - self.began)
