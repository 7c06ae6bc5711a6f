"""Errors as RFC 9457 problem+json, the field named.

400  the body cannot be parsed                 409  the store refuses
401  no or a wrong token                       413  the body is too large
404  no such route                             415  neither JSON nor MessagePack
405  not with this method                      422  a field has a wrong type or value
408  the body came too slowly                  500  a bug: logged, nothing of it shown
                                               503  overloaded, late or not ready; comes with Retry-After
"""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import AdsieveError, ArtifactError, InputError, RequestError
from service.answer_headers import ANSWER_HEADERS
from service.api import Problem
from service.batching import QueueFullError
from service.deadline import DeadlineError
from service.routing import NotServingError
from service.shortened import shortened

PROBLEM_JSON = "application/problem+json"


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


KIND_PREFIX = "urn:adsieve:problem:"

MAX_DETAIL, MAX_FIELD = 2_000, 300
"""Characters of a request's own values that its refusal repeats."""


def respond_to(error: Exception, *, retry_after_s: int, problem: Problem | None = None) -> Response:
    """The HTTP answer for an error.

    Args:
        problem: Of the error, where it is known already.
    """
    problem = problem_of(error) if problem is None else problem
    headers = dict(error.headers or {}) if isinstance(error, HttpProblem | HTTPException) else {}
    if problem.status == 503:
        headers["Retry-After"] = str(retry_after_s)
    return Response(msgspec.json.encode(problem), problem.status, headers, PROBLEM_JSON)


def problem_of(error: Exception) -> Problem:
    """What is told of an error. One that was not raised on purpose is a bug: 500, and nothing of it is shown."""
    match error:
        case HttpProblem():
            return _problem(error.status, error.kind, str(error))
        case RequestError():
            return _problem(422, "invalid-value", str(error), field=error.field)
        case InputError():
            return _problem(400, "not-parseable", str(error))
        case QueueFullError():
            return _problem(503, "overloaded", f"{error}, try again later")
        case DeadlineError():
            return _problem(503, "deadline", str(error))
        case NotServingError():
            return _problem(503, "not-serving", str(error))
        case ArtifactError():
            return _problem(409, "store", str(error))
        case HTTPException():
            return _problem(error.status_code, "http", _detail(error))
    return _problem(500, "internal", "an unexpected error, see the log")


def _detail(error: HTTPException) -> str:
    """Of a path or method that there is not, what there is."""
    match error.status_code:
        case 404:
            return "no such route; GET /openapi.json lists every route"
        case 405:
            return (
                f"expected {(error.headers or {}).get('Allow', 'another method')}; GET /openapi.json lists every route"
            )
    return str(error.detail)


def _problem(status: int, kind: str, detail: str, *, field: str | None = None) -> Problem:
    return Problem(
        type=f"{KIND_PREFIX}{kind}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=shortened(detail, MAX_DETAIL),
        field=None if field is None else shortened(field, MAX_FIELD),
    )


def add_problem_handlers(app: FastAPI, *, retry_after_s: int) -> None:
    """Let every error of the application leave as a problem document; the server logs what was a bug."""

    async def answer(request: Request, error: Exception) -> Response:
        response = respond_to(error, retry_after_s=retry_after_s)
        response.headers.update(ANSWER_HEADERS)  # no middleware sees what a bug is answered with
        return response

    for kind in (AdsieveError, HttpProblem, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
