"""Log lines of requests that were slow, degraded or failed: with their stages, and never more than so many a second."""

import logging
from typing import Any

import msgspec

from service.logs import RateLimit, logging_request
from service.ranker import Outcome
from service.settings import Settings
from service.stopwatch import Stopwatch

log = logging.getLogger(__name__)


class Trace(msgspec.Struct):
    """What is known of a request while it is answered; ``request_id`` once its body was read and named one."""

    watch: Stopwatch = msgspec.field(default_factory=Stopwatch)
    request_id: str | None = None


class RequestLog:
    """Logs requests, each kind of line under a limit of its own. May be used from any thread.

    Args:
        settings: ``slow_ms`` and ``log_lines_per_s``.
    """

    def __init__(self, settings: Settings) -> None:
        self._slow_ms = settings.slow_ms
        kinds = ("slow", "degraded", "refused", "failed")
        self._limits = {kind: RateLimit(settings.log_lines_per_s) for kind in kinds}

    def answered(self, outcome: Outcome) -> None:
        """Log an answer that is degraded or was slow."""
        response = outcome.response
        if response.degraded is not None:
            kind, level, why = "degraded", logging.WARNING, f"{response.degraded.reason}: {response.degraded.detail}"
        elif self._slow_ms is not None and response.timing_ms.total > self._slow_ms:
            kind, level, why = "slow", logging.WARNING, f"{response.timing_ms.total:.1f} ms"
        else:
            return
        held_back = self._passes(kind, level)
        if held_back is None:
            return
        timing = response.timing_ms
        stages = {name: round(getattr(timing, name), 3) for name in timing.__struct_fields__}
        fields = {"candidates": outcome.num_candidates, "timing_ms": stages}
        self._line(level, response.request_id, "a %s answer: %s", (kind, why), fields | held_back)

    def called(self, trace: Trace, rows: int) -> None:
        """Log a call of the heavy stage that was answered, where it was slow."""
        timing = trace.watch.timing()
        if self._slow_ms is None or timing.total <= self._slow_ms:
            return
        held_back = self._passes("slow", logging.WARNING)
        if held_back is not None:
            stages = {name: round(spent, 3) for name, spent in trace.watch.stages.items()}
            fields = {"rows": rows, "timing_ms": stages | {"total": round(timing.total, 3)}}
            self._line(logging.WARNING, trace.request_id, "a slow call: %.1f ms", (timing.total,), fields | held_back)

    def failed(self, error: Exception, status: int, trace: Trace) -> None:
        """Log a request that got a problem instead of an answer; a bug with its traceback."""
        is_bug = status == 500
        level = logging.ERROR if is_bug else logging.WARNING if status > 500 else logging.INFO
        held_back = self._passes("failed" if is_bug else "refused", level)
        if held_back is None:  # as most refusals of an overload are
            return
        stages = {name: round(spent, 3) for name, spent in trace.watch.stages.items()}
        fields = {"status": status, "timing_ms": stages | {"total": round(trace.watch.timing().total, 3)}} | held_back
        if is_bug:
            self._line(level, trace.request_id, "a request failed", (), fields, error)
        else:
            self._line(level, trace.request_id, "a request was refused: %s", (error,), fields)

    def _passes(self, kind: str, level: int) -> dict[str, Any] | None:
        """A field that tells how many lines of this kind were held back before one, if any; None: this is held back."""
        if not log.isEnabledFor(level) or (held_back := self._limits[kind].passes()) is None:
            return None
        return {"held_back": held_back} if held_back else {}

    def _line(
        self,
        level: int,
        request_id: str | None,
        text: str,
        values: tuple[object, ...],
        fields: dict[str, Any],
        error: Exception | None = None,
    ) -> None:
        with logging_request(request_id):
            log.log(level, text, *values, exc_info=error, extra={"fields": fields})
