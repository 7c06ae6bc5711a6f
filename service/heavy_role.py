"""``adsieve serve --role heavy``: a host that runs heavy rankers for others, and ranks nothing itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.responses import Response

from indexing.stores import open_store
from service.answer_headers import AnswerHeaders
from service.api import Problem
from service.health import METRICS
from service.heavy_host import HeavyHost
from service.heavy_route import HeavyRoute
from service.heavy_wire import PATH, HeavyAnswer, HeavyRequest
from service.hot import HotApplication, hot_router
from service.media import JSON, MSGPACK
from service.openapi import answers, body, described
from service.problems import add_problem_handlers
from service.repeat import repeating
from service.serving_metrics import TELL_S
from service.settings import Settings
from service.telemetry import Telemetry
from service.workers import Workers


class HeavyState(msgspec.Struct, frozen=True, kw_only=True):
    """What this host runs: engines by version, and what it cannot open."""

    ready: bool
    heavies: dict[str, str]
    failures: dict[str, str]


_CALL_ANSWERS = answers(HeavyAnswer, MSGPACK, problems=(400, 401, 408, 413, 422, 503))
_READY = answers(HeavyState, problems=())
_READY[503] = {**_READY[200], "description": "Not yet: a heavy ranker that the store names is missing"}


def create_heavy_app(settings: Settings, *, settle: Callable[[], None] = lambda: None) -> FastAPI:
    """The application of a heavy host over one store.

    Args:
        settings: Of the service.
        settle: Called once, before the host is first ready.
    """
    telemetry = Telemetry()
    store = open_store(settings.store, local=settings.local)
    host, workers = HeavyHost(store.local, settings, settle), Workers(settings, telemetry.heavy_batch, remote=False)
    telemetry.serving.watch_device(host.devices.gpu.memory)
    route = HeavyRoute(host, workers, settings, telemetry)

    def poll() -> None:
        host.poll()
        telemetry.serving.runs({version: heavy.engine for version, heavy in host.heavies.items()})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        works = [(poll, settings.poll_interval_s), (telemetry.tell, TELL_S)]
        if store.local is not store:
            works.append((store.refresh, settings.update_interval_s))
        with workers:
            async with repeating(works) as polled:
                if telemetry.serving.siblings_serve():
                    await polled()  # else this process would take calls that it cannot answer yet
                telemetry.serving.listens()
                yield
        telemetry.add_up()

    pages = {"docs_url": None, "redoc_url": None}  # they load scripts from other hosts
    app = HotApplication(
        {PATH: route}, title="adsieve heavy", version="1", lifespan=lifespan, redirect_slashes=False, **pages
    )
    app.add_middleware(AnswerHeaders)
    app.openapi = lambda: described(app, (HeavyRequest, HeavyAnswer, HeavyState, Problem), ("heavy_token",))  # type: ignore[method-assign]
    security: dict[str, Any] = {"security": [{"heavy_token": []}]} if settings.heavy_token is not None else {}
    summary, wanted = "Run a heavy ranker on one request's survivors", body(HeavyRequest, MSGPACK)
    app.include_router(
        hot_router(PATH, route, summary=summary, responses=_CALL_ANSWERS, openapi_extra=wanted | security)
    )
    app.state.host, app.state.stop, app.state.refusals = host, host.stop, {}
    telemetry.serving.watch(lambda: (host.is_ready, workers.heavy_waiting))

    @app.get("/health/live", summary="The process runs")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get("/health/ready", summary="Calls are answered", responses=_READY, response_class=Response)
    async def ready() -> Response:
        engines = {version: heavy.engine for version, heavy in host.heavies.items()}
        state = HeavyState(
            ready=host.is_ready and not telemetry.serving.num_loading, heavies=engines, failures=host.failures
        )
        return Response(msgspec.json.encode(state), 200 if state.ready else 503, media_type=JSON)

    @app.get("/metrics", summary="Prometheus metrics", responses=METRICS, response_class=Response)
    async def metrics() -> Response:
        text, content_type = await asyncio.to_thread(telemetry.exposition)  # it takes milliseconds
        return Response(text, headers={"Content-Type": content_type})

    add_problem_handlers(app, retry_after_s=settings.retry_after_s)
    return app
