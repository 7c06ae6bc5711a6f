"""The HTTP application: a factory and a lifespan. Importing this module does nothing."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial

from fastapi import FastAPI

from indexing.stores import open_store
from service.admin import admin_router
from service.answer_headers import AnswerHeaders
from service.answering import Answering
from service.batch_route import PATH as BATCH
from service.batch_route import BatchRoute
from service.console_routes import console_router
from service.feedback import feedback_log
from service.follower import Follower
from service.health import health_router
from service.heavy_watch import CHECK_S
from service.hot import HotApplication, hot_router
from service.kserve import KSERVE_TYPES, kserve_router
from service.openapi import BATCH_ANSWERS, BATCH_BODY, RANK_ANSWERS, RANK_BODY, document
from service.problems import add_problem_handlers
from service.rank_route import PATH as RANK
from service.rank_route import RankRoute
from service.repeat import repeating
from service.serving_metrics import TELL_S
from service.settings import Settings
from service.shadow import Shadows
from service.telemetry import Telemetry
from service.workers import Workers

log = logging.getLogger(__name__)


def create_app(settings: Settings, *, settle: Callable[[], None] = lambda: None) -> FastAPI:
    """The application of one store, which may be empty: /rank answers 503 until a release is published.

    ``app.state.follower`` is the ``Follower``, for whoever embeds the application; ``app.state.stop()`` makes it ready
    no more, before its server ends; ``app.state.refusals`` are asked before a request begins (``EarlyRefusals``).

    Args:
        settings: Of the service.
        settle: Called once, before the service is first ready.
    """
    telemetry = Telemetry()
    store = open_store(settings.store, local=settings.local)
    workers = Workers(
        settings,
        telemetry.heavy_batch,
        remote=settings.heavy_url is not None,
        observe_queries=telemetry.query_batch,
    )
    is_mirror = store.local is not store
    follower = Follower(
        store.local, settings, telemetry, doubt=store.doubt, workers=workers, is_mirror=is_mirror, settle=settle
    )
    telemetry.serving.watch_device(follower.devices.gpu.memory)
    telemetry.serving.watch(lambda: (follower.is_ready, workers.heavy_waiting))
    feedback = feedback_log(settings, telemetry.feedback, lambda: follower.snapshot.served())
    counts, of_shadows = telemetry.shadow_feedback, lambda: follower.snapshot.shadows.values()
    shadow_log = feedback_log(settings, counts, of_shadows, folder="shadow")
    shadows = Shadows(settings, telemetry.experiments, workers=workers, feedback=shadow_log)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with feedback or nullcontext(), shadow_log or nullcontext(), workers, shadows:
            repeated = [(follower.poll, settings.poll_interval_s), (follower.apply_updates, settings.update_interval_s)]
            repeated.append((telemetry.tell, TELL_S))
            if settings.heavy_url is not None:
                repeated.append((follower.check_heavy, CHECK_S))
            if is_mirror:
                repeated.append((partial(follower.attempt, "refresh", store.refresh), settings.update_interval_s))
            # Threads of their own: updates wait neither for a release that loads nor for a route that does.
            try:
                async with repeating(repeated) as polled:
                    if telemetry.serving.siblings_serve():
                        await polled()  # else this process would take requests that it cannot answer yet
                    telemetry.serving.listens()
                    yield
                    follower.stop()
            finally:
                follower.close()
                telemetry.add_up()

    answering = Answering(follower, settings, telemetry, workers, feedback, shadows)
    rank, batch = RankRoute(answering), BatchRoute(answering, min(settings.max_batch, settings.max_in_flight))
    app = HotApplication(
        {RANK: rank, BATCH: batch},
        title="adsieve",
        version="1",
        description="The lightweight ranking stage of an ads pipeline.",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from other hosts; /openapi.json tells all of it
        redoc_url=None,
        redirect_slashes=False,  # it names the scheme and the path behind a proxy, which are not the caller's
    )
    app.add_middleware(AnswerHeaders)
    app.state.follower, app.state.workers, app.state.stop = follower, workers, follower.stop
    app.state.refusals = {path.encode(): answering.refusal for path in (RANK, BATCH)}
    app.openapi = lambda: document(app, rank_token=settings.rank_token is not None, more=KSERVE_TYPES)  # type: ignore[method-assign]
    summary = "Rank candidate ads, or retrieve and rank them"
    app.include_router(hot_router(RANK, rank, summary=summary, responses=RANK_ANSWERS, openapi_extra=RANK_BODY))
    summary = "Answer several rank requests, each as if it had come alone"
    app.include_router(hot_router(BATCH, batch, summary=summary, responses=BATCH_ANSWERS, openapi_extra=BATCH_BODY))
    app.include_router(health_router(follower, telemetry))
    app.include_router(kserve_router(follower, telemetry))
    app.include_router(admin_router(follower, settings))
    app.include_router(console_router(follower, settings, workers))
    add_problem_handlers(app, retry_after_s=settings.retry_after_s)
    return app
