"""The OpenAPI document: FastAPI's, with the true types of the bodies that are read and written raw."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.api import BatchRequest, BatchResponse, Problem, RankRequest, RankResponse
from service.console_api import ConsoleRankRequest, ConsoleRankResponse, ConsoleReleases, SavedRequests
from service.media import JSON, MSGPACK
from service.problems import PROBLEM_JSON
from service.status import Readiness, Releases, RollbackRequest, ServingRelease

_REF = "#/components/schemas/{name}"
_TYPES = (
    *(RankRequest, RankResponse, BatchRequest, BatchResponse, Problem),
    *(Readiness, Releases, RollbackRequest, ServingRelease),
    *(ConsoleReleases, ConsoleRankRequest, ConsoleRankResponse, SavedRequests),
)

EXAMPLE = {
    "request_id": "r-1",
    "scenario": "shopping",
    "query": {"user_id": "u42", "country": "DE"},
    "candidates": {"ids": ["ad-1", "ad-2"], "bids": [1.2, None]},
    "filters": {"exclude_advertisers": ["a-7"]},
    "survivors": 100,
    "limit": 50,
    "stage": "full",
    "timeout_ms": 50,
    "explain": False,
}


def reference(type_: type) -> dict[str, str]:
    """A reference to the schema of one of the types above."""
    return {"$ref": _REF.format(name=type_.__name__)}


def body(type_: type, *media: str, example: Any = None, required: bool = True) -> dict[str, Any]:
    """The ``requestBody`` of a route that reads its body raw."""
    content = {"schema": reference(type_)} | ({"example": example} if example is not None else {})
    return {"requestBody": {"required": required, "content": dict.fromkeys(media or (JSON,), content)}}


def answers(type_: type, *media: str, problems: tuple[int, ...]) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route: 200 of a type, and problems by status."""
    content = {"schema": reference(type_)}
    responses: dict[int | str, dict[str, Any]] = {
        200: {"description": "Done", "content": dict.fromkeys(media or (JSON,), content)}
    }
    for status in problems:
        problem = {"schema": reference(Problem)}
        responses[status] = {"description": "Problem (RFC 9457)", "content": {PROBLEM_JSON: problem}}
    return responses


RANK_BODY = body(RankRequest, JSON, MSGPACK, example=EXAMPLE)
BATCH_BODY = body(BatchRequest, JSON, MSGPACK, example={"requests": [EXAMPLE, EXAMPLE | {"request_id": "r-2"}]})
_PROBLEMS = (400, 401, 408, 413, 415, 422, 503)
RANK_ANSWERS = answers(RankResponse, JSON, MSGPACK, problems=_PROBLEMS)
BATCH_ANSWERS = answers(BatchResponse, JSON, MSGPACK, problems=_PROBLEMS)


def document(app: FastAPI, *, rank_token: bool, more: tuple[type, ...] = ()) -> dict[str, Any]:
    """FastAPI's document with the schemas of the raw types; made once an app.

    Args:
        rank_token: Whether ranking needs its token.
        more: Other types that routes of the application refer to.
    """
    if app.openapi_schema is None:
        schema = described(app, (*_TYPES, *more), ("admin_token", "rank_token"))
        for path, routes in schema["paths"].items():
            if rank_token and path.startswith("/rank"):
                routes["post"]["security"] = [{"rank_token": []}]
    return app.openapi_schema or {}


def described(app: FastAPI, types: tuple[type, ...], tokens: tuple[str, ...]) -> dict[str, Any]:
    """FastAPI's document with the schemas of raw types and the names of tokens; made once an app."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _, components = msgspec.json.schema_components(types, ref_template=_REF)
        schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
        schema["components"]["securitySchemes"] = {name: {"type": "http", "scheme": "bearer"} for name in tokens}
        app.openapi_schema = schema
    return app.openapi_schema
