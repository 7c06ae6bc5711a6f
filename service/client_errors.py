"""Why a request has no answer, as a caller of the service is told.

ClientError               there is no answer
├── ProblemError          the service says why: status, type, field, detail
├── LateError             the caller's deadline passed
├── UnreachableError      no connection, or it broke
├── UnreadableError       what came back is no answer to the request
└── BusyError             as many requests wait in this process as may
"""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
import urllib3

from contracts.errors import AdsieveError
from service.api import Problem
from service.posting import Answer, AnswerSizeError


class ClientError(AdsieveError):
    """There is no answer."""


class LateError(ClientError):
    """The caller's deadline passed."""


class UnreachableError(ClientError):
    """No connection, or it broke."""


class UnreadableError(ClientError):
    """What came back is no answer to the request."""


class BusyError(ClientError):
    """As many requests wait in this process as may."""


class ProblemError(ClientError):
    """The service refused the request, or something between here and there did.

    Args:
        problem: What it said; ``problem.type`` is ``about:blank`` where that was no problem document.
        retry_after_s: When to ask again, if it said that.
    """

    def __init__(self, problem: Problem, *, retry_after_s: float | None = None) -> None:
        super().__init__(f"{problem.status} {problem.title}: {problem.detail}")
        self.problem, self.retry_after_s = problem, retry_after_s

    @property
    def status(self) -> int:
        """Of HTTP."""
        return self.problem.status

    @property
    def type(self) -> str:
        """Such as ``urn:adsieve:problem:overloaded``."""
        return self.problem.type

    @property
    def field(self) -> str | None:
        """Dotted path of the field at fault."""
        return self.problem.field

    @property
    def detail(self) -> str:
        """What was found and what was expected."""
        return self.problem.detail


def problem_error(answer: Answer) -> ProblemError:
    """The error of an answer whose status is not 200."""
    return ProblemError(_problem(answer), retry_after_s=_seconds(answer.headers))


def _problem(answer: Answer) -> Problem:
    try:
        return msgspec.json.decode(answer.body, type=Problem)
    except (msgspec.DecodeError, ValueError, RecursionError):
        known = answer.status in HTTPStatus._value2member_map_
        title = HTTPStatus(answer.status).phrase if known else "unknown status"
        detail = answer.body[:300].decode(errors="replace")
        return Problem(type="about:blank", title=title, status=answer.status, detail=detail)


def _seconds(headers: Mapping[str, str]) -> float | None:
    value = headers.get("Retry-After", "").strip()
    return float(value) if value.isascii() and value.isdecimal() else None


def is_unanswered(error: Exception) -> bool:
    """Whether a connection was refused, or dropped before anything came back: asking again is safe."""
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return True
    causes = error.args[1:] if isinstance(error, urllib3.exceptions.ProtocolError) else ()
    return any(isinstance(cause, ConnectionError) for cause in causes)


def told(error: Exception, url: str, timeout_s: float) -> Exception:
    """The error of a call that failed, if that is what happened."""
    refused = urllib3.exceptions.NewConnectionError  # which counts as a timeout there
    late = (TimeoutError, urllib3.exceptions.TimeoutError, urllib3.exceptions.EmptyPoolError)
    if isinstance(error, late) and not isinstance(error, refused):
        return LateError(f"{url} did not answer within {1000 * timeout_s:.0f} ms")
    if isinstance(error, urllib3.exceptions.HTTPError):
        return UnreachableError(f"{url}: {type(error).__name__}: {error}")
    if isinstance(error, AnswerSizeError):
        return UnreadableError(f"{url}: {error}")
    return error
