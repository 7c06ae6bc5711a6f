"""The HTTP application: a factory and a lifespan. Importing this module does nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI

from indexing.store import DirectoryStore
from service.admin import admin_router
from service.follower import Follower
from service.health import health_router
from service.openapi import document
from service.problems import add_problem_handlers
from service.rank_route import rank_router
from service.settings import Settings
from service.telemetry import Telemetry
from service.workers import Workers

log = logging.getLogger(__name__)


def create_app(settings: Settings) -> FastAPI:
    """The application of one store, which may be empty: /rank answers 503 until a release is published.

    ``app.state.follower`` is the ``Follower``, for whoever embeds the application.
    """
    telemetry = Telemetry()
    follower = Follower(DirectoryStore(settings.store), settings, telemetry)
    workers = Workers(settings.rank_threads)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with workers:
            following = asyncio.create_task(_follow(follower, settings.poll_interval_s))
            try:
                yield
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following

    app = FastAPI(
        title="adsieve",
        version="1",
        description="The lightweight ranking stage of an ads pipeline.",
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.follower = follower
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    app.include_router(rank_router(follower, settings, telemetry, workers))
    app.include_router(health_router(follower, telemetry))
    app.include_router(admin_router(follower, settings))
    add_problem_handlers(app, retry_after_s=settings.retry_after_s)
    return app


async def _follow(follower: Follower, interval_s: float) -> None:
    """Poll the store for ever; loading blocks a thread of its own, never the event loop."""
    while True:
        try:
            await asyncio.to_thread(follower.poll)
        except Exception:
            log.exception("the store could not be polled")
        await asyncio.sleep(interval_s)
