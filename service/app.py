"""The HTTP application: a factory and a lifespan. Importing this module does nothing."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial

from fastapi import FastAPI

from indexing.stores import open_store
from service.admin import admin_router
from service.feedback import feedback_log
from service.follower import Follower
from service.health import health_router
from service.hot import HotApplication
from service.openapi import document
from service.problems import add_problem_handlers
from service.rank_route import PATH, RankRoute, rank_router
from service.repeat import repeating
from service.serving_metrics import TELL_S
from service.settings import Settings
from service.shadow import Shadows
from service.telemetry import Telemetry
from service.workers import Workers

log = logging.getLogger(__name__)


def create_app(settings: Settings) -> FastAPI:
    """The application of one store, which may be empty: /rank answers 503 until a release is published.

    ``app.state.follower`` is the ``Follower``, for whoever embeds the application; ``app.state.stop()`` makes it ready
    no more, before its server ends.
    """
    telemetry = Telemetry()
    store = open_store(settings.store, local=settings.local)
    workers = Workers(settings, telemetry.heavy_batch, remote=settings.heavy_url is not None)
    follower = Follower(store.local, settings, telemetry, doubt=store.doubt, workers=workers)
    telemetry.serving.watch(lambda: (follower.is_ready, workers.heavy_waiting))
    feedback = feedback_log(settings, telemetry.feedback, lambda: follower.snapshot.served())
    shadow_log = feedback_log(settings, telemetry.feedback, lambda: follower.snapshot.shadows.values(), folder="shadow")
    shadows = Shadows(settings, telemetry.experiments, workers=workers, feedback=shadow_log)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with feedback or nullcontext(), shadow_log or nullcontext(), workers, shadows:
            repeated = [(follower.poll, settings.poll_interval_s), (follower.apply_updates, settings.update_interval_s)]
            repeated.append((telemetry.serving.tell, TELL_S))
            if store.local is not store:
                repeated.append((partial(follower.attempt, "refresh", store.refresh), settings.update_interval_s))
            # Threads of their own: updates wait neither for a release that loads nor for a route that does.
            try:
                async with repeating(repeated) as polled:
                    if telemetry.serving.siblings_serve():
                        await polled()  # else this process would take requests that it cannot answer yet
                    telemetry.serving.listens()
                    yield
            finally:
                follower.close()

    rank = RankRoute(follower, settings, telemetry, workers, feedback, shadows)
    app = HotApplication(
        {PATH: rank},
        title="adsieve",
        version="1",
        description="The lightweight ranking stage of an ads pipeline.",
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.follower, app.state.stop = follower, follower.stop
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    app.include_router(rank_router(rank))
    app.include_router(health_router(follower, telemetry))
    app.include_router(admin_router(follower, settings))
    add_problem_handlers(app, retry_after_s=settings.retry_after_s)
    return app
