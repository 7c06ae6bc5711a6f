"""Routes that move or re-read the store's pointer, behind a bearer token."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InputError, NotCurrentError, RequestError
from indexing.stores import Store, open_store
from service.body import read_body
from service.follower import Follower
from service.media import JSON
from service.openapi import answers, body
from service.problems import HttpProblem
from service.settings import Settings
from service.status import Releases, RollbackRequest, ServingRelease, releases, serving_release
from service.tokens import authorization, require_token
from service.wire import decode

MAX_BODY_BYTES = 64 << 10
SECURITY: dict[str, Any] = {"security": [{"admin_token": []}]}
PROBLEMS = (400, 401, 408, 409, 413, 422)


def admin_router(follower: Follower, settings: Settings) -> APIRouter:
    """The routes over one follower. Without a token in the settings they answer 401 to everybody."""
    router = APIRouter(prefix="/admin")

    def require_admin(request: Request) -> None:
        require_token(authorization(request.headers.raw), settings.admin_token, setting="ADSIEVE_ADMIN_TOKEN")

    @router.post(
        "/rollback",
        summary="Move a scenario's pointer one release back and follow it",
        responses=answers(ServingRelease, problems=PROBLEMS),
        response_class=Response,
        openapi_extra=body(RollbackRequest) | SECURITY,
    )
    async def rollback(request: Request) -> Response:
        require_admin(request)
        wanted = decode(
            await read_body(
                request.headers.get("content-length"), request.receive, MAX_BODY_BYTES, settings.body_timeout_s
            ),
            RollbackRequest,
        )
        store = open_store(settings.store, local=settings.local)
        return _json(await asyncio.to_thread(_roll_back, store, follower, wanted))

    @router.post(
        "/reload",
        summary="Follow the store's pointers now, and try refused releases again",
        responses=answers(Releases, problems=(401,)),
        response_class=Response,
        openapi_extra=SECURITY,
    )
    async def reload(request: Request) -> Response:
        require_admin(request)
        await asyncio.to_thread(follower.poll, retry_failed=True)
        return _json(await asyncio.to_thread(releases, follower))

    return router


def _roll_back(store: Store, follower: Follower, wanted: RollbackRequest) -> ServingRelease:
    try:
        store.rollback(wanted.scenario, current=wanted.current)
    except NotCurrentError as error:
        raise HttpProblem(409, "store", str(error)) from error
    except InputError as error:
        raise RequestError(str(error), field="scenario") from error
    follower.poll(retry_failed=True)
    return serving_release(follower, wanted.scenario)


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
