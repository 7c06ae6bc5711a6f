"""Routes under /admin/console: what the console's page reads, behind the admin token."""

import asyncio

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.admin import SECURITY
from service.api import RankRequest
from service.body import read_body
from service.console_access import require_console
from service.console_api import ConsoleRankRequest, ConsoleRankResponse, ConsoleReleases, SavedRequests
from service.console_page import page_router
from service.console_ranking import ConsoleRanking
from service.console_releases import console_releases
from service.console_requests import saved_request, saved_requests
from service.follower import Follower
from service.media import JSON
from service.openapi import answers, body
from service.settings import Settings
from service.wire import decode
from service.workers import Workers

MAX_BODY_BYTES = 4 << 20
"""Of a request to rank; a service that takes less keeps its own limit."""


def console_router(follower: Follower, settings: Settings, workers: Workers) -> APIRouter:
    """The page and its data, over one follower."""
    router, ranking = APIRouter(prefix="/admin/console"), ConsoleRanking(follower, settings, workers)

    @router.get(
        "/releases",
        summary="The releases of each scenario, with what their manifests say",
        responses=answers(ConsoleReleases, problems=(401,)),
        response_class=Response,
        openapi_extra=SECURITY,
    )
    async def releases_of_console(request: Request) -> Response:
        require_console(request, settings)
        may = settings.admin_token is not None
        return _json(await asyncio.to_thread(console_releases, follower, may_roll_back=may))

    @router.get(
        "/requests",
        summary="Saved requests of the serving releases",
        responses=answers(SavedRequests, problems=(401,)),
        response_class=Response,
        openapi_extra=SECURITY,
    )
    async def requests_of_console(request: Request) -> Response:
        require_console(request, settings)
        return _json(await asyncio.to_thread(saved_requests, follower.snapshot))

    @router.get(
        "/requests/{scenario}/{number}",
        summary="One saved request",
        responses=answers(RankRequest, problems=(401, 404)),
        response_class=Response,
        openapi_extra=SECURITY,
    )
    async def request_of_console(request: Request, scenario: str, number: str) -> Response:
        require_console(request, settings)
        return Response(saved_request(follower.snapshot, scenario, number), media_type=JSON)

    @router.post(
        "/rank",
        summary="Rank a request and explain it, by what serves and by another release; nothing is counted or logged",
        responses=answers(ConsoleRankResponse, problems=(400, 401, 408, 409, 413, 422, 503)),
        response_class=Response,
        openapi_extra=body(ConsoleRankRequest) | SECURITY,
    )
    async def rank_of_console(request: Request) -> Response:
        require_console(request, settings)
        limit = min(MAX_BODY_BYTES, settings.max_body_bytes)
        length = request.headers.get("content-length")
        asked = decode(await read_body(length, request.receive, limit, settings.body_timeout_s), ConsoleRankRequest)
        return _json(await asyncio.to_thread(ranking.answer, asked))

    whole = APIRouter()
    whole.include_router(router)
    whole.include_router(page_router(needs_token=settings.admin_token is not None))
    return whole


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
