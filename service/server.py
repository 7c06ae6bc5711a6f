"""One process that serves an application on a socket that is already bound, until it is told to stop."""

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Literal

import uvicorn

from service.accepting import Balance, BalancedServer
from service.early_refusals import EarlyRefusals
from service.logs import Format, set_up_logs
from service.memory import set_up_heap, settle
from service.settings import Settings
from service.slow_clients import SlowClients

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)

STUCK_S = 5.0
"""Beyond all limits of a process that was told to stop."""

SWITCH_S = 0.0005
"""After which a thread that computes in Python lets another one go on; at the usual 5 ms a request would wait that long
each time that a release is being loaded beside it."""
LAST_READ_S = 0.25
"""From the last connection that is taken until idle ones are closed."""

_TICK_S = 0.05
_TICKS_A_LOOK = 10
"""At connections; uvicorn ticks ten times a second."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What every process of one ``adsieve serve`` is made from; sent to workers as it is, tokens included."""

    settings: Settings
    role: Literal["rank", "heavy"] = "rank"
    log_level: str = "info"
    log_format: Format = "text"


def serve_process(
    options: ServeOptions,
    listener: socket.socket,
    listening: Callable[[], None] = lambda: None,
    balance: Balance | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT: requests in flight are answered, new connections refused.

    A second signal ends a pause for load balancers (``drain_s``), a third cuts requests off. A process that is stuck
    ends ``STUCK_S`` after all of its limits, with 1, and writes where each thread was.

    Args:
        listener: Bound; listened on once the application has begun.
        listening: Called, in another thread, once connections are taken.
        balance: Where other processes take connections from this socket too, whose turn it is.
    """
    set_up_logs(options.log_level, options.log_format)
    set_up_heap()
    app = _application(options)
    sys.setswitchinterval(SWITCH_S)
    settle()  # once more when the first release is there: see Follower
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http=partial(EarlyRefusals, refusals=app.state.refusals),  # type: ignore[arg-type]
        ws="none",  # there is no route for one
        proxy_headers=False,  # nothing asks whom a proxy speaks for, and every request would pay for it
        timeout_keep_alive=options.settings.keep_alive_s,
        timeout_graceful_shutdown=options.settings.shutdown_s,
    )
    slow = SlowClients(options.settings.header_timeout_s, options.settings.write_timeout_s)
    server = _Server(config, slow, balance)
    stop = _Stop(server, app.state.stop, options.settings.drain_s, options.settings.shutdown_s)
    server.handle_exit = stop.on_signal  # type: ignore[method-assign]
    threading.Thread(target=_tell, args=(server, listening), daemon=True).start()
    with listener:
        server.run(sockets=[listener])


def _application(options: ServeOptions) -> "FastAPI":
    """The application of a role; libraries that read their number of threads when imported are imported here."""
    import faiss

    from service.app import create_app
    from service.heavy_role import create_heavy_app

    faiss.omp_set_num_threads(options.settings.engine_threads)
    create = create_app if options.role == "rank" else create_heavy_app
    return create(options.settings, settle=settle)


class _Server(uvicorn.Server):
    """Reads what came on connections that it took last, before it closes idle ones: their requests are in flight.

    Args:
        slow: Ends connections whose clients send or read nothing.
        balance: Whose turn it is to take a connection; None where nobody shares the socket.
    """

    def __init__(self, config: uvicorn.Config, slow: SlowClients, balance: Balance | None = None) -> None:
        super().__init__(config)
        self._slow, self._balance = slow, balance

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._balance is None or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        (listener,) = sockets
        server = BalancedServer(listener, self._balance, self._protocol)
        self.server_state.connections = server.connections
        server.start(self.config.backlog)
        self.servers.append(server)  # type: ignore[arg-type]

    def _protocol(self) -> asyncio.Protocol:
        """What uvicorn makes for a connection that it took itself."""
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_A_LOOK == 0:
            self._slow.look(list(self.server_state.connections))
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await asyncio.sleep(LAST_READ_S)
        await super().shutdown(sockets)


class _Stop:
    """What a signal does to a server."""

    def __init__(self, server: uvicorn.Server, stop: Callable[[], None], drain_s: float, shutdown_s: float) -> None:
        self._server, self._stop, self._drain_s, self._shutdown_s = server, stop, drain_s, shutdown_s
        self._signals = 0

    def on_signal(self, sig: int, frame: FrameType | None) -> None:
        """Stop, or stop sooner."""
        self._signals += 1
        if self._signals == 1:  # in C: no thread that holds the interpreter holds it up
            faulthandler.dump_traceback_later(self._drain_s + self._shutdown_s + STUCK_S, exit=True)
        self._stop()
        if self._signals == 1 and self._drain_s > 0:
            timer = threading.Timer(self._drain_s, self._end)
            timer.daemon = True
            timer.start()
        elif self._signals <= 2:
            self._end()
        else:
            self._server.force_exit = True

    def _end(self) -> None:
        self._server.should_exit = True


def _tell(server: uvicorn.Server, listening: Callable[[], None]) -> None:
    pause = threading.Event()
    while not server.started:
        pause.wait(_TICK_S)
    log.info("process %d takes connections", os.getpid())
    listening()


def end_with_parent(parent_is_gone: Callable[[], object]) -> None:
    """Stop as if told to, once ``parent_is_gone`` returns; that blocks in a thread of its own."""

    def watch() -> None:
        parent_is_gone()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
