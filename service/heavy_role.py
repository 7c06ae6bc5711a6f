"""``adsieve serve --role heavy``: a host that runs heavy rankers for others, and ranks nothing itself.

It follows the same store and holds the heavy rankers of each scenario's current release and of the one before, so that
hosts which roll to a release, or back, find it here.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path

import msgspec
import numpy as np
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from contracts.bundle import open_bundle
from contracts.errors import AdsieveError, MismatchError, RequestError
from indexing.store import DirectoryStore
from indexing.stores import open_store, shown_store
from service.batch_trials import with_trial
from service.batching import QueueFullError
from service.body import read_body
from service.deadline import Deadline, DeadlineError
from service.device_engines import DeviceEngines
from service.heavies import LoadedHeavy, load_heavy, usual_survivors
from service.heavy import HeavyCall
from service.heavy_wire import PATH, REQUEST_ID_HEADER, call_of, decode_call, encode_logits, request_id_of
from service.hot import HotApplication
from service.media import JSON, MSGPACK
from service.memory import give_back
from service.problems import HttpProblem, add_problem_handlers, respond_to
from service.repeat import repeating
from service.request_log import RequestLog, Trace
from service.serving_metrics import TELL_S
from service.settings import Settings
from service.telemetry import Telemetry
from service.tokens import require_token
from service.workers import Workers

log = logging.getLogger(__name__)

KEPT_RELEASES = 2
"""Of a scenario: the current one and what a rollback leads to."""


class HeavyHost:
    """The heavy rankers of a store's newest releases. ``poll`` blocks; the rest may be read from any thread.

    Args:
        store: Followed.
        settings: Threads and engine.
    """

    def __init__(self, store: DirectoryStore, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._lock, self.devices = threading.Lock(), DeviceEngines(settings)
        self.heavies: dict[str, LoadedHeavy] = {}
        self.failures: dict[str, str] = {}
        self._tried: dict[str, float] = {}
        self._is_stopping, self._has_let_go = False, False

    @property
    def is_ready(self) -> bool:
        """Whether there is anything to run and nothing of what is named is missing."""
        return bool(self.heavies) and not self.failures and not self._is_stopping

    def stop(self) -> None:
        """Be ready no more: the process is about to end, what it was asked is still answered."""
        self._is_stopping = True

    def poll(self) -> None:
        """Open what the store names and is not open; let go what it names no more."""
        with self._lock:
            try:
                wanted = self._wanted()
            except Exception as error:
                self._fail("", error)
                return
            self._note_empty(is_empty=not wanted)
            has_news = self.devices.has_news()  # a plan was built: another engine may take over
            for version, path in wanted.items():
                if (version not in self.heavies or has_news) and not self._is_paused(version):
                    self._open(version, path)
            if self._has_let_go:  # a pause ago: calls that had begun with it are answered
                give_back()
            self._has_let_go = any(version not in wanted for version in self.heavies)
            self.heavies = {version: heavy for version, heavy in self.heavies.items() if version in wanted}
            named = {*wanted, ""}
            self.failures = {version: text for version, text in self.failures.items() if version in named}

    def _note_empty(self, *, is_empty: bool) -> None:
        """Tell that there is nothing to run; and forget that the store could not be read."""
        what = f"{shown_store(self._settings.store)}: no release names a heavy ranker yet, waiting for one"
        if not is_empty:
            self.failures = {version: text for version, text in self.failures.items() if version}
        elif self.failures.get("") != what:
            log.info("%s", what)
            self.failures = self.failures | {"": what}

    def _wanted(self) -> dict[str, Path]:
        wanted = {}
        for scenario in self._store.scenarios():
            for release in (self._store.current(scenario), *self._store.list(scenario)[:KEPT_RELEASES]):
                path = None if release is None else self._store.paths(release).heavy
                if release is not None and release.heavy is not None and path is not None:
                    wanted[release.heavy] = path
        return wanted

    def _open(self, version: str, path: Path) -> None:
        settings = self._settings
        try:
            bundle = open_bundle(path, kind="heavy")
            heavy = load_heavy(
                bundle,
                threads=settings.engine_threads,
                engine=settings.heavy_engine,
                survivors=usual_survivors(settings.survivors),
                gpu=self.devices.gpu,
            )
            if heavy.version != version:
                raise AdsieveError(f"{bundle.path}: is {heavy.version}, the release names {version}")
        except Exception as error:
            self._fail(version, error)
            return
        self.heavies = self.heavies | {version: with_trial(heavy, settings)}
        self.failures.pop(version, None)
        log.info("heavy ranker %s is run here", version)

    def _is_paused(self, version: str) -> bool:
        tried = self._tried.get(version)
        return tried is not None and time.monotonic() - tried < self._settings.failed_retry_s

    def _fail(self, version: str, error: Exception) -> None:
        log.error("heavy ranker %s is refused: %s", version or "of the store", error)
        self._tried[version] = time.monotonic()
        self.failures = self.failures | {version: f"{type(error).__name__}: {error}"}


class HeavyRoute:
    """Answers /heavy, as ``RankRoute`` answers /rank: at most ``max_in_flight`` calls are read, waiting or run.

    Args:
        host: Holds the heavy rankers.
        workers: Run them, calls of several requests together.
        settings: Limits and token.
        telemetry: Counts.
    """

    def __init__(self, host: HeavyHost, workers: Workers, settings: Settings, telemetry: Telemetry) -> None:
        self._host, self._workers, self._settings, self._telemetry = host, workers, settings, telemetry
        self._log = RequestLog(settings)
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call, to logits or a problem."""
        trace, start = Trace(), time.monotonic()
        self._in_flight += 1
        self._telemetry.in_flight.set(self._in_flight)
        try:
            if self._in_flight > self._settings.max_in_flight:
                raise HttpProblem(503, "overloaded", f"{self._in_flight - 1} calls are in flight, try again later")
            response = await self._answered(scope, receive, trace, start)
        except Exception as error:
            response = respond_to(error, retry_after_s=self._settings.retry_after_s)
            self._telemetry.problem(error)
            self._log.failed(error, response.status_code, trace)
        finally:
            self._in_flight -= 1
            self._telemetry.in_flight.set(self._in_flight)
        self._telemetry.requests.labels(str(response.status_code)).inc()
        await response(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive, trace: Trace, start: float) -> Response:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        trace.request_id = request_id_of(headers.get(REQUEST_ID_HEADER))
        if self._settings.heavy_token is not None:
            require_token(headers.get(b"authorization"), self._settings.heavy_token, setting="ADSIEVE_HEAVY_TOKEN")
        settings = self._settings
        body = await read_body(
            headers.get(b"content-length"), receive, settings.max_body_bytes, timeout_s=settings.body_timeout_s
        )
        with trace.watch.stage("decode"):
            request = decode_call(body)
        heavy = self._host.heavies.get(request.version)
        if heavy is None:
            raise HttpProblem(503, "not-serving", f"the heavy ranker {request.version!r} is not run here")
        call = call_of(request, heavy, max_survivors=self._settings.max_survivors)
        deadline = Deadline.after_ms(request.timeout_ms, start=start)
        with trace.watch.stage("heavy"):
            logits = await self._run(call, deadline)
        response = Response(encode_logits(call, logits), media_type=MSGPACK)
        self._telemetry.call(trace.watch.timing())
        self._log.called(trace, len(call.ads))
        return response

    async def _run(self, call: HeavyCall, deadline: Deadline) -> np.ndarray:
        try:
            future = asyncio.wrap_future(self._workers.heavy.submit(call, deadline))
            return await asyncio.wait_for(future, None if deadline.at == inf else max(deadline.remaining_s(), 0))
        except TimeoutError:
            raise DeadlineError("the deadline passed in the heavy stage") from None
        except QueueFullError as error:
            raise HttpProblem(503, "overloaded", str(error)) from None
        except MismatchError as error:  # an id beyond its table
            raise RequestError(str(error), field="ids") from None


class HeavyState(msgspec.Struct, frozen=True, kw_only=True):
    """What this host runs: engines by version, and what it cannot open."""

    ready: bool
    heavies: dict[str, str]
    failures: dict[str, str]


def create_heavy_app(settings: Settings) -> FastAPI:
    """The application of a heavy host over one store."""
    telemetry = Telemetry()
    store = open_store(settings.store, local=settings.local)
    host, workers = HeavyHost(store.local, settings), Workers(settings, telemetry.heavy_batch, remote=False)
    telemetry.serving.watch_device(host.devices.gpu.memory)
    route = HeavyRoute(host, workers, settings, telemetry)

    def poll() -> None:
        host.poll()
        telemetry.serving.runs({version: heavy.engine for version, heavy in host.heavies.items()})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        works = [(poll, settings.poll_interval_s), (telemetry.serving.tell, TELL_S)]
        if store.local is not store:
            works.append((store.refresh, settings.update_interval_s))
        with workers:
            async with repeating(works) as polled:
                if telemetry.serving.siblings_serve():
                    await polled()  # else this process would take calls that it cannot answer yet
                telemetry.serving.listens()
                yield

    pages = {"docs_url": None, "redoc_url": None}  # they load scripts from other hosts
    app = HotApplication({PATH: route}, title="adsieve heavy", version="1", lifespan=lifespan, **pages)
    app.state.host, app.state.stop = host, host.stop
    telemetry.serving.watch(lambda: (host.is_ready, workers.heavy_waiting))

    @app.get("/health/live", summary="The process runs")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get("/health/ready", summary="Calls are answered", response_class=Response)
    async def ready() -> Response:
        engines = {version: heavy.engine for version, heavy in host.heavies.items()}
        state = HeavyState(
            ready=host.is_ready and not telemetry.serving.num_loading, heavies=engines, failures=host.failures
        )
        return Response(msgspec.json.encode(state), 200 if state.ready else 503, media_type=JSON)

    @app.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        text, content_type = await asyncio.to_thread(telemetry.exposition)  # it takes milliseconds
        return Response(text, headers={"Content-Type": content_type})

    add_problem_handlers(app, retry_after_s=settings.retry_after_s)
    return app
