"""Log lines: text, or one JSON object a line; the request's id stands in every line that concerns a request."""

import logging
import sys
import threading
import time
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from service.shortened import shortened

Format = Literal["text", "json"]

MAX_TEXT, MAX_TRACEBACK = 4_000, 40_000
"""Characters of a message and of a traceback that a line holds: a request's values stand in them."""

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

PLACE_LINES_PER_S = 50.0
"""Most lines a second of one place in the code: what fails with every request must not fill a disk."""

PLACE_TRACEBACKS_PER_S = 1.0
"""The same of events with a traceback, which are many lines each."""

_REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)


class logging_request(msgspec.Struct):
    """Lines that are logged inside, in this thread or task, carry the id.

    Every request enters it several times: a class costs a fifth of a generator.
    """

    request_id: str | None
    _token: Token[str | None] | None = None

    def __enter__(self) -> None:
        self._token = _REQUEST_ID.set(self.request_id)

    def __exit__(self, *raised: object) -> None:
        if self._token is not None:
            _REQUEST_ID.reset(self._token)


def logged_request() -> str | None:
    """The id that lines carry which are logged here."""
    return _REQUEST_ID.get()


def set_up_logs(level: str, form: Format) -> None:
    """Let all loggers of the process write to standard error.

    Args:
        level: Least level shown, such as ``info``.
        form: Of a line.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines(TEXT))
    handler.addFilter(PlaceLimits(PLACE_LINES_PER_S, PLACE_TRACEBACKS_PER_S).allows)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    # It tells at level info each build of faiss that this machine has not, as an error.
    logging.getLogger("faiss.loader").setLevel(max(logging.WARNING, logging.getLogger().level))


class TextLines(logging.Formatter):
    """Lines for a person, the request's id and fields at the end."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = shortened(record.message, MAX_TEXT)
        line = super().formatMessage(record)
        return line + "".join(f" {name}={value!r}" for name, value in _extras(record).items())

    def formatException(self, ei: Any) -> str:
        return shortened(super().formatException(ei), MAX_TRACEBACK)


class JsonLines(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, process, message, and what belongs to the event."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": shortened(record.getMessage(), MAX_TEXT),
            **_extras(record),
        }
        if record.exc_info:
            line["exception"] = shortened(self.formatException(record.exc_info), MAX_TRACEBACK)
        return msgspec.json.encode(line, enc_hook=str).decode()


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    """The request's id, if any, and ``extra={"fields": ...}`` of the call."""
    request_id = _REQUEST_ID.get()
    return ({} if request_id is None else {"request_id": request_id}) | getattr(record, "fields", {})


class RateLimit:
    """Lets through so many events a second, as many at once after a quiet second; safe in any thread.

    Args:
        per_s: Above 0.
    """

    def __init__(self, per_s: float) -> None:
        self._per_s, self._most = per_s, max(per_s, 1.0)
        self._left, self._at, self._held_back = self._most, time.monotonic(), 0
        self._lock = threading.Lock()

    def passes(self) -> int | None:
        """How many events were held back since the last that passed; None where this one is held back too."""
        with self._lock:
            now = time.monotonic()
            self._left = min(self._most, self._left + (now - self._at) * self._per_s)
            self._at = now
            if self._left < 1:
                self._held_back += 1
                return None
            self._left -= 1
            held_back, self._held_back = self._held_back, 0
            return held_back


class PlaceLimits:
    """A limit for each place in the code that logs.

    Args:
        per_s: Lines, above 0.
        tracebacks_per_s: Events with a traceback, above 0.
    """

    def __init__(self, per_s: float, tracebacks_per_s: float) -> None:
        self._per_s, self._tracebacks_per_s = per_s, tracebacks_per_s
        self._limits: dict[tuple[str, int, bool], RateLimit] = {}

    def allows(self, record: logging.LogRecord) -> bool:
        """Whether a line may be written, as a filter of ``logging``; it then tells how many were held back before."""
        has_traceback = bool(record.exc_info)
        per_s = self._tracebacks_per_s if has_traceback else self._per_s
        place = (record.pathname, record.lineno, has_traceback)
        held_back = self._limits.setdefault(place, RateLimit(per_s)).passes()
        if held_back:
            record.fields = getattr(record, "fields", {}) | {"held_back": held_back}
        return held_back is not None
