"""Routes that watch: /health/live, /health/ready, /metrics, /releases."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from service.follower import Follower
from service.media import JSON
from service.openapi import answers
from service.status import Readiness, Releases, readiness, releases
from service.telemetry import Telemetry


def health_router(follower: Follower, telemetry: Telemetry) -> APIRouter:
    """The routes over one follower and its metrics."""
    router = APIRouter()

    @router.get("/health/live", summary="The process runs")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @router.get("/health/ready", summary="Requests are answered", responses=_READY, response_class=Response)
    async def ready() -> Response:
        state = readiness(follower, telemetry.serving.num_loading)
        return Response(msgspec.json.encode(state), 200 if state.ready else 503, media_type=JSON)

    @router.get("/metrics", summary="Prometheus metrics", responses=METRICS, response_class=Response)
    async def metrics() -> Response:
        text, content_type = await asyncio.to_thread(telemetry.exposition)  # it takes milliseconds
        return Response(text, headers={"Content-Type": content_type})

    @router.get("/releases", summary="What serves", responses=answers(Releases, problems=()), response_class=Response)
    async def list_releases() -> Response:
        return Response(msgspec.json.encode(await asyncio.to_thread(releases, follower)), media_type=JSON)

    return router


_READY = answers(Readiness, problems=())
_READY[503] = {**_READY[200], "description": "Not yet: no release is loaded and warm for every scenario"}
METRICS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Text exposition", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
