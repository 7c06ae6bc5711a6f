"""``adsieve serve`` without ranking: the same application decodes each request and encodes an answer that it knows.

``python -m benchmarks.serving_floor serve ...`` takes the options of ``adsieve serve``. The first request of each
number of candidates and stage is ranked truly; its outcome is the answer to all that follow.
"""

import os
from dataclasses import dataclass

import adsieve
from service import answering
from service.api import RankRequest
from service.deadline import Deadline
from service.heavy_runner import DirectRunner
from service.ranker import Outcome, light_stage
from service.releases import Snapshot
from service.request_inputs import RequestInputs
from service.settings import Settings


@dataclass(frozen=True)
class Known:
    """Stands in for a request between its light stage and its answer."""

    outcome: Outcome
    inputs: RequestInputs
    patience_s: float | None = None

    def start_heavy(self, runner: object) -> list[object]:
        """Nothing to wait for."""
        return []

    def finish(self) -> Outcome:
        """The answer."""
        return self.outcome


class KnownAnswers:
    """Stands in for ``service.ranker.light_stage``."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], Known] = {}

    def __call__(
        self, request: RankRequest, snapshot: Snapshot, settings: Settings, deadline: Deadline, **named: object
    ) -> Known:
        candidates = request.candidates
        ids = candidates.get("ids", []) if isinstance(candidates, dict) else candidates or []
        key = len(ids), request.stage
        if key not in self._known:
            underway = light_stage(request, snapshot, settings, deadline)
            underway.start_heavy(DirectRunner())
            self._known[key] = Known(underway.finish(), underway.inputs)
        return self._known[key]


def know_answers() -> None:
    """Put the stand-in into this process."""
    if getattr(answering, "light_stage", None) is not light_stage:
        raise RuntimeError("service.answering no longer calls service.ranker.light_stage: adapt serving_floor")
    vars(answering)["light_stage"] = KnownAnswers()
    os.environ["ADSIEVE_QUERY_BATCHING"] = "off"  # requests that share calls of a tower go another way


if __name__ in ("__main__", "__mp_main__"):  # the latter in each worker, which imports this module anew
    know_answers()

if __name__ == "__main__":
    adsieve.main()
