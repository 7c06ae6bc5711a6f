"""The heavy stage on another host: calls over HTTP, pooled, with a timeout and a pause after repeated failures."""

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import urllib3

from contracts.errors import AdsieveError
from service.batching import QueueFullError
from service.deadline import Deadline, DeadlineError
from service.heavy import HeavyCall, HeavyUnavailableError
from service.heavy_wire import PATH, REQUEST_ID_HEADER, decode_logits, encode_call, request_id_header
from service.logs import logged_request
from service.media import MSGPACK
from service.posting import post
from service.problems import KIND_PREFIX
from service.settings import Settings

NOT_RUN = f"{KIND_PREFIX}not-serving".encode()
"""In the problem of a host that does not run the version that it is asked for."""


class RemoteError(AdsieveError):
    """The heavy host refused a call, or its connection broke."""


class NotRunError(RemoteError):
    """The heavy host answers, but does not run this heavy ranker."""


@dataclass(frozen=True)
class HostFault:
    """What another host fails with; ``at`` is Unix time."""

    error: str
    at: float


class Pause:
    """Stops asking a host that fails: after some failures in a row, for a while; then one call tries.

    Args:
        failures: So many in a row.
        pause_s: The while.
    """

    def __init__(self, failures: int, pause_s: float) -> None:
        self._limit, self._pause_s = failures, pause_s
        self._lock = threading.Lock()
        self._failures, self._until, self._error = 0, 0.0, ""

    @property
    def is_on(self) -> bool:
        """Whether the host is left alone."""
        with self._lock:
            return self._failures >= self._limit

    def check(self) -> None:
        """Let a call pass.

        Raises:
            HeavyUnavailableError: The host is left alone.
        """
        with self._lock:
            if self._failures < self._limit:
                return
            left_s = self._until - time.monotonic()
            if left_s > 0:
                detail = f"the heavy host failed {self._failures} times in a row, it is asked again in {left_s:.1f} s"
                raise HeavyUnavailableError("failed", f"{detail}; its last error: {self._error}")
            self._until = time.monotonic() + self._pause_s  # this call tries, the others wait for what becomes of it

    def note(self, error: str | None) -> None:
        """What a call failed with; None where it did not."""
        with self._lock:
            self._failures, self._error = (0, "") if error is None else (self._failures + 1, error)
            if self._failures == self._limit:
                self._until = time.monotonic() + self._pause_s


class RemoteRunner:
    """Runs calls on the host of ``heavy_url``, between start and stop.

    Args:
        settings: Where it is, and the limits.
    """

    def __init__(self, settings: Settings) -> None:
        if settings.heavy_url is None:
            raise ValueError("heavy_url is not set")
        self._url = settings.heavy_url.rstrip("/") + PATH
        self._timeout_s = settings.heavy_timeout_ms / 1000
        self._connections, self._waiting = settings.heavy_connections, settings.heavy_queue
        token = settings.heavy_token.get_secret_value() if settings.heavy_token else None
        self._headers: dict[str, Any] = {"Content-Type": MSGPACK}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}".encode()  # a text would be sent as Latin-1
        self._pause = Pause(settings.heavy_failures, settings.heavy_pause_s)
        self._lock = threading.Lock()
        self._faults: dict[str, HostFault] = {}
        self._open = 0
        self._pool: urllib3.PoolManager | None = None
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> "RemoteRunner":
        self._pool = urllib3.PoolManager(maxsize=self._connections, retries=False)
        self._threads = ThreadPoolExecutor(self._connections, "remote-heavy")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._threads is not None and self._pool is not None:
            self._threads.shutdown(cancel_futures=True)
            self._pool.clear()
        self._threads = self._pool = None

    def num_waiting(self) -> int:
        """How many calls wait for a connection."""
        return max(0, self._open - self._connections)

    def submit(self, call: HeavyCall, deadline: Deadline) -> "Future[np.ndarray]":
        """The logits [N, T] of a call, once they are there.

        Raises:
            HeavyUnavailableError: The host is left alone after its failures.
            QueueFullError: Too many calls wait for a connection.
        """
        if self._threads is None:
            raise RuntimeError("the application's lifespan has not begun or is over: no thread asks the heavy host")
        with self._lock:
            if self._open >= self._connections + self._waiting:
                raise QueueFullError(f"calls that wait for the heavy host: {self._open}")
            self._pause.check()
            self._open += 1
        future = self._threads.submit(self._ask, call, deadline, logged_request())
        future.add_done_callback(self._closed)
        return future

    def fault(self, versions: Iterable[str]) -> HostFault | None:
        """What the last call for one of these heavy rankers failed with, the latest of them."""
        with self._lock:
            faults = dict(self._faults)
        found = [faults[version] for version in versions if version in faults]
        if not found:
            return None
        last = max(found, key=lambda fault: fault.at)
        if self._pause.is_on:
            return HostFault(f"left alone for a while after its failures, the last: {last.error}", last.at)
        return last

    def _closed(self, future: "Future[np.ndarray]") -> None:
        with self._lock:
            self._open -= 1

    def _ask(self, call: HeavyCall, deadline: Deadline, request_id: str | None) -> np.ndarray:
        left_s = min(self._timeout_s, deadline.remaining_s())
        if left_s <= 0:
            raise DeadlineError("it passed before the heavy host was asked")
        end = time.monotonic() + left_s
        body = encode_call(call, timeout_ms=1000 * left_s)
        try:
            logits = decode_logits(self._post(body, self._headers_of(request_id), end), call)
        except Exception as error:
            told = _told(error, self._url, left_s)
            if deadline.has_passed:
                raise told from error  # the request had little time: no fault of the host
            with self._lock:
                self._faults[call.heavy.version] = HostFault(str(told), time.time())
            # A host that lacks one version answers for others: no reason to leave it alone.
            self._pause.note(None if isinstance(told, NotRunError) else str(told))
            raise told from error
        with self._lock:
            self._faults.pop(call.heavy.version, None)
        self._pause.note(None)
        return logits

    def _headers_of(self, request_id: str | None) -> dict[str, Any]:
        named = {} if request_id is None else {REQUEST_ID_HEADER.decode(): request_id_header(request_id)}
        return self._headers | named

    def _post(self, body: bytes, headers: dict[str, Any], end: float) -> bytes:
        """The body of a 200. A connection that the host had closed meanwhile is opened again, once."""
        try:
            return self._post_once(body, headers, end)
        except urllib3.exceptions.ProtocolError:
            return self._post_once(body, headers, end)

    def _post_once(self, body: bytes, headers: dict[str, Any], end: float) -> bytes:
        if self._pool is None:
            raise RuntimeError("the application is over")
        answer = post(self._pool, self._url, body, headers, end)
        if answer.status != 200:
            kind = NotRunError if answer.status == 503 and NOT_RUN in answer.body else RemoteError
            raise kind(f"{self._url}: {answer.status}: {answer.body[:300].decode(errors='replace')}")
        return answer.body


def _told(error: Exception, url: str, left_s: float) -> Exception:
    """What happened, in a line."""
    refused = urllib3.exceptions.NewConnectionError  # which counts as a timeout there
    if isinstance(error, TimeoutError | urllib3.exceptions.TimeoutError) and not isinstance(error, refused):
        return RemoteError(f"{url} did not answer within {1000 * left_s:.0f} ms")
    if isinstance(error, urllib3.exceptions.HTTPError):
        return RemoteError(f"{url}: {type(error).__name__}: {error}")
    return error
