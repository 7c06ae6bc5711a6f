"""Load whose requests leave when a schedule says, whatever became of the ones before: an open loop.

The latency of a request counts from the moment at which it was due, so that a server which stalls cannot hide the
requests that nobody could send meanwhile (no coordinated omission). One process, one thread, HTTP/1.1 over connections
that stay; an answer is read as far as its status, its ``Retry-After`` and its length.
"""

import asyncio
import random
import resource
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

FAILED = 0
"""In place of a status: the connection ended before the answer did, or there was none."""

_HEAD_END = b"\r\n\r\n"
_SPARE_S = 1e-3


@dataclass
class Sample:
    """One request: when it was due, sent and answered, seconds on one clock; its status; whether to try again later."""

    due: float
    sent: float = 0.0
    done: float = 0.0
    status: int = FAILED
    retry_after: bool = False

    @property
    def latency_ms(self) -> float:
        return 1000 * (self.done - self.due)

    @property
    def late_ms(self) -> float:
        """How much too late it was sent."""
        return 1000 * (self.sent - self.due)


@dataclass
class Report:
    """All requests of one block, and the share of one core that sending them took."""

    samples: list[Sample]
    seconds: float
    core_share: float

    def having(self, status: int) -> list[Sample]:
        return [sample for sample in self.samples if sample.status == status]

    def quantile_ms(self, quantile: float, status: int = 200) -> float:
        """Of the latencies of answers with a status; NaN where there is none."""
        found = [sample.latency_ms for sample in self.having(status)]
        return float(np.quantile(found, quantile)) if found else float("nan")

    def late_ms(self, quantile: float) -> float:
        """Quantile of how much too late requests were sent."""
        return float(np.quantile([sample.late_ms for sample in self.samples], quantile))


def poisson_moments(rate: float, seconds: float, seed: int) -> list[float]:
    """Moments in [0, seconds) of a Poisson process of so many a second."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate, int(rate * seconds * 1.2) + 100)
    moments = np.cumsum(gaps)
    return [float(moment) for moment in moments[moments < seconds]]


def packed(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    """The bytes of a POST."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}"
    return head.encode() + _HEAD_END + body


@dataclass
class Client:
    """Connections to one server on this machine.

    Args:
        port: Of the server.
        requests: Packed ones; which is sent when is drawn with ``seed``.
        most: Connections that may be open; where all are busy, requests wait here, and that time counts.
        on_answer: Told of the body of each 200.
    """

    port: int
    requests: Sequence[bytes]
    most: int = 512
    seed: int = 0
    on_answer: Callable[[bytes], None] | None = None
    _idle: "deque[_Connection]" = field(default_factory=deque)
    _waiting: "deque[tuple[bytes, Sample]]" = field(default_factory=deque)
    _num_open: int = 0
    _open_requests: int = 0
    _woken: "asyncio.Future[None] | None" = None

    async def open(self, count: int) -> None:
        """Open connections one after another, so that all workers of a server get some."""
        for _ in range(count):
            await self._connect()
            await asyncio.sleep(_SPARE_S)

    def close(self) -> None:
        while self._idle:
            self._idle.popleft().close()

    async def run(self, moments: Sequence[float], *, wait: bool = True, patience_s: float = 30.0) -> Report:
        """Send one request at each moment, seconds from now.

        Args:
            wait: For all answers, at most ``patience_s``; else they come while what follows is sent.
        """
        rng, samples = random.Random(self.seed), [Sample(due=moment) for moment in moments]
        start, cpu = time.perf_counter(), _cpu_s()
        for sample in samples:
            sample.due += start
            left_s = sample.due - time.perf_counter()
            if left_s > 0:
                await asyncio.sleep(left_s)
            self._send(rng.choice(self.requests), sample)
        share = (_cpu_s() - cpu) / (time.perf_counter() - start)
        end = time.perf_counter() + patience_s
        while wait and self._open_requests and time.perf_counter() < end:
            await asyncio.sleep(_SPARE_S)
        return Report(samples, time.perf_counter() - start, share)

    async def closed_loop(self, connections: int, seconds: float) -> Report:
        """Send the next request of a connection when its answer came: what a server can hold, nobody waiting."""
        rng, start, cpu = random.Random(self.seed), time.perf_counter(), _cpu_s()
        await self.open(connections - len(self._idle))
        samples: list[Sample] = []
        while (now := time.perf_counter()) < start + seconds:
            while self._idle and self._open_requests < connections:
                samples.append(Sample(due=now))
                self._send(rng.choice(self.requests), samples[-1])
            waits = asyncio.get_running_loop().create_future()
            self._woken = waits
            await asyncio.wait([waits], timeout=0.1)
        taken = time.perf_counter() - start
        share = (_cpu_s() - cpu) / taken
        while self._open_requests:
            await asyncio.sleep(_SPARE_S)
        return Report(samples, taken, share)

    def _send(self, request: bytes, sample: Sample) -> None:
        self._open_requests += 1
        while self._idle:
            connection = self._idle.popleft()  # the one that rested longest
            if connection.is_open:
                connection.send(request, sample)
                return
        self._waiting.append((request, sample))
        if self._num_open < self.most:
            asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        self._num_open += 1
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self.port)
        except OSError:
            self._num_open -= 1
            self._fail_one_waiting()

    def _fail_one_waiting(self) -> None:
        if self._waiting:
            _, sample = self._waiting.popleft()
            self.finished(sample)

    def idle(self, connection: "_Connection") -> None:
        """A connection that can send."""
        if self._waiting:
            connection.send(*self._waiting.popleft())
        else:
            self._idle.append(connection)

    def finished(self, sample: Sample) -> None:
        """A request that was answered, or never will be."""
        sample.done = time.perf_counter()
        self._open_requests -= 1
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def closed(self) -> None:
        """A connection ended."""
        self._num_open -= 1


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._sample: Sample | None = None
        self._received = bytearray()
        self._wanted = 0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._client.idle(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._client.closed()
        if self._sample is not None:
            sample, self._sample = self._sample, None
            sample.status = FAILED
            self._client.finished(sample)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def send(self, request: bytes, sample: Sample) -> None:
        """Send a request; nothing else is under way here."""
        self._sample, self._wanted = sample, 0
        self._received.clear()
        sample.sent = time.perf_counter()
        if self._transport is not None:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        sample = self._sample
        if sample is None:
            return
        if not self._wanted:
            end = self._received.find(_HEAD_END)
            if end < 0:
                return
            head = bytes(self._received[:end]).lower()
            sample.status = int(head[9:12])
            sample.retry_after = b"\r\nretry-after:" in head
            self._wanted = end + len(_HEAD_END) + int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._received) < self._wanted:
            return
        if self._client.on_answer is not None and sample.status == 200:
            self._client.on_answer(bytes(self._received[self._received.find(_HEAD_END) + len(_HEAD_END) :]))
        self._sample = None
        self._client.finished(sample)
        if self.is_open:
            self._client.idle(self)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
