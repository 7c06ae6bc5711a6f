"""Errors as RFC 9457 problem+json, the field named.

400  the body cannot be parsed                 413  the body is too large
401  no or a wrong token                       415  neither JSON nor MessagePack
404  no such route                             422  a field has a wrong type or value
405  not with this method                      500  a bug: logged, nothing of it shown
409  the store refuses                         503  overloaded, late or not ready; comes with Retry-After
"""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import AdsieveError, ArtifactError, InputError, RequestError
from service.deadline import DeadlineError
from service.routing import NotServingError

PROBLEM_JSON = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document. ``field`` is the dotted path of the request field at fault."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None


class HttpProblem(Exception):
    """An error that the service answers with as it is.

    Args:
        status: HTTP status.
        kind: The last part of the problem's type.
        detail: What was found and what was expected.
        headers: Of the answer, beside Retry-After, which every 503 gets.
    """

    def __init__(self, status: int, kind: str, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.kind, self.headers = status, kind, dict(headers or {})


def respond_to(error: Exception, *, retry_after_s: int) -> Response:
    """The answer for an error. One that was not raised on purpose is a bug: 500, and nothing of it is shown."""
    match error:
        case HttpProblem():
            headers = error.headers | ({"Retry-After": str(retry_after_s)} if error.status == 503 else {})
            return problem_response(error.status, error.kind, str(error), headers=headers)
        case RequestError():
            return problem_response(422, "invalid-value", str(error), field=error.field)
        case InputError():
            return problem_response(400, "not-parseable", str(error))
        case DeadlineError():
            return respond_to(HttpProblem(503, "deadline", str(error)), retry_after_s=retry_after_s)
        case NotServingError():
            return respond_to(HttpProblem(503, "not-serving", str(error)), retry_after_s=retry_after_s)
        case ArtifactError():
            return problem_response(409, "store", str(error))
        case HTTPException():
            return problem_response(error.status_code, "http", str(error.detail), headers=error.headers)
    return problem_response(500, "internal", "an unexpected error, see the log")


def problem_response(
    status: int, kind: str, detail: str, *, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """A problem of type ``urn:adsieve:problem:KIND`` as an HTTP response."""
    title = HTTPStatus(status).phrase
    problem = Problem(type=f"urn:adsieve:problem:{kind}", title=title, status=status, detail=detail, field=field)
    return Response(msgspec.json.encode(problem), status, headers, PROBLEM_JSON)


def add_problem_handlers(app: FastAPI, *, retry_after_s: int) -> None:
    """Let every error of the application leave as a problem document; the server logs what was a bug."""

    async def answer(request: Request, error: Exception) -> Response:
        return respond_to(error, retry_after_s=retry_after_s)

    for kind in (AdsieveError, HttpProblem, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
