"""The HTTP application: a factory and a lifespan. Importing this module does nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from indexing.stores import open_store
from service.admin import admin_router
from service.feedback import feedback_log
from service.follower import Follower
from service.health import health_router
from service.openapi import document
from service.problems import add_problem_handlers
from service.rank_route import PATH, RankRoute, rank_router
from service.settings import Settings
from service.telemetry import Telemetry
from service.workers import Workers

log = logging.getLogger(__name__)


class Application(FastAPI):
    """FastAPI for everything but the hot path: POST /rank goes past its layers to a raw ASGI callable."""

    def __init__(self, rank: RankRoute, **options: Any) -> None:
        super().__init__(**options)
        self._rank = rank

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "POST":
            await self._rank(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(settings: Settings) -> FastAPI:
    """The application of one store, which may be empty: /rank answers 503 until a release is published.

    ``app.state.follower`` is the ``Follower``, for whoever embeds the application.
    """
    telemetry = Telemetry()
    store = open_store(settings.store, local=settings.local)
    follower = Follower(store.local, settings, telemetry, doubt=store.doubt)
    workers = Workers(settings, telemetry.heavy_batch)
    feedback = feedback_log(settings, telemetry.feedback, follower)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with feedback or nullcontext(), workers:
            repeated = [(follower.poll, settings.poll_interval_s), (follower.apply_updates, settings.update_interval_s)]
            if store.local is not store:
                repeated.append((partial(follower.attempt, "refresh", store.refresh), settings.update_interval_s))
            # Threads of their own: updates wait neither for a release that loads nor for a route that does.
            threads = ThreadPoolExecutor(len(repeated), thread_name_prefix="follow")
            tasks = [asyncio.create_task(_repeat(threads, work, interval_s)) for work, interval_s in repeated]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                threads.shutdown(cancel_futures=True)
                follower.close()

    rank = RankRoute(follower, settings, telemetry, workers, feedback)
    app = Application(
        rank,
        title="adsieve",
        version="1",
        description="The lightweight ranking stage of an ads pipeline.",
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.follower = follower
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    app.include_router(rank_router(rank))
    app.include_router(health_router(follower, telemetry))
    app.include_router(admin_router(follower, settings))
    add_problem_handlers(app, retry_after_s=settings.retry_after_s)
    return app


async def _repeat(threads: Executor, work: Callable[[], None], interval_s: float) -> None:
    """Do something again and again for ever, in a thread of its own: it may block, the event loop may not."""
    while True:
        try:
            await asyncio.get_running_loop().run_in_executor(threads, work)
        except Exception:
            log.exception("%s failed", work)
        await asyncio.sleep(interval_s)
