"""Commands of the service: ``adsieve serve`` and ``adsieve rank``."""

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from contracts.console import warn
from indexing.cli_options import Local, Store

if TYPE_CHECKING:
    import socket

    from service.api import RankResponse
    from service.settings import Settings

log = logging.getLogger(__name__)

STANDARD_INPUT = Path("-")
_IDS_PRINTED = 10
"""Of each reason to drop candidates."""


def serve(
    store: Store = "store",
    local: Local = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8000,
    role: Annotated[
        Literal["rank", "heavy"],
        typer.Option(help="rank answers /rank; heavy runs heavy rankers for hosts whose ADSIEVE_HEAVY_URL it is."),
    ] = "rank",
    workers: Annotated[
        int, typer.Option(help="Processes that answer, on one socket; they share the mapped memory.", min=1, max=256)
    ] = 1,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(case_sensitive=False, help="Least level shown.")
    ] = "info",
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="text is for people; json is one object a line.")
    ] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The same as --log-level error.")] = False,
) -> None:
    """Serve POST /rank over HTTP, following the releases of a store; or, with --role heavy, the heavy stage alone.

    Limits and policies come from ADSIEVE_* variables, such as ADSIEVE_UNKNOWN_ADS=score or ADSIEVE_MAX_IN_FLIGHT=128;
    the admin routes need ADSIEVE_ADMIN_TOKEN. The store may still be empty: a release is picked up once published.

    SIGTERM ends it once the requests in flight are answered; with several workers, SIGHUP renews one after another.
    """
    from service.environment import load_settings, unknown_variables

    log_level = "error" if quiet else log_level
    settings = load_settings(store, local)
    require_no_file(str(settings.store))
    listener = listening(host, port)
    if workers > 1 and "engine_threads" not in settings.model_fields_set:
        settings = settings.model_copy(update={"engine_threads": threads_each(workers)})
    limit_threads(settings.engine_threads)
    from service.logs import set_up_logs
    from service.server import ServeOptions, serve_process
    from service.supervisor import Supervisor, shared_counts

    set_up_logs(log_level, log_format)
    for line in unknown_variables(os.environ):
        log.warning("%s", line)
    options = ServeOptions(settings=settings, role=role, log_level=log_level, log_format=log_format)
    if workers == 1:
        serve_process(options, listener)
        return
    with listener, shared_counts():
        Supervisor(options, listener, workers).run()


def threads_each(workers: int) -> int:
    """Threads for one of so many processes: the cores that this one may use, shared out."""
    return max(1, len(os.sched_getaffinity(0)) // workers)


def limit_threads(threads: int) -> None:
    """Limit what libraries read once, when they are first imported, here and in processes that begin later."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(variable, str(threads))


def rank(
    request: Annotated[
        Path, typer.Argument(help="A file with the JSON body that POST /rank takes; - reads it from standard input.")
    ],
    store: Store = "store",
    local: Local = None,
    json: Annotated[bool, typer.Option("--json", help="Print the whole answer, as /rank gives it.")] = False,
) -> None:
    """Rank one request without a server, with the releases and updates that the store holds now.

    The answer is that of POST /rank under the same ADSIEVE_* variables.
    """
    from service.environment import load_settings, unknown_variables
    from service.wire import encode_response

    for line in unknown_variables(os.environ):
        warn(line)
    response = rank_file(request, load_settings(store, local))
    if json:
        sys.stdout.write(encode_response(response).decode() + "\n")
    else:
        _print_table(response)


def require_no_file(store: str) -> None:
    """Refuse a store in which no release can ever appear; one that is not there yet may be published to.

    Raises:
        InputError: Of a directory store, it or what it lies in is a file.
    """
    from contracts.errors import InputError

    path = Path(store)
    found = None if "://" in store else next((one for one in (path, *path.parents) if one.exists()), None)
    if found is not None and not found.is_dir():
        raise InputError(f"--store {store}: {found} is a file, expected a directory; it may still be empty or absent")


def listening(host: str, port: int) -> "socket.socket":
    """A socket that is bound before anything is loaded.

    Raises:
        InputError: Somebody else listens there, or the address is none of this machine.
    """
    import errno
    import socket

    from contracts.errors import InputError

    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"--host {host} --port {port}: cannot listen there: {error.strerror}",
            next_step="give another --port, or end what listens there" if error.errno == errno.EADDRINUSE else None,
        ) from error
    return listener


def rank_file(path: Path, settings: "Settings") -> "RankResponse":
    """Answer the request in a JSON file, or on standard input, from the current releases of the store.

    Raises:
        InputError: The file is missing or no JSON, or the store holds no release.
        RequestError: A field has a wrong type or value.
        ArtifactError: A release cannot be loaded.
    """
    from contracts.errors import ArtifactError, InputError, RequestError
    from indexing.cli_options import opened_store
    from indexing.stores import pull_again, shown_store
    from service.deadline import Deadline
    from service.ranker import rank as rank_request
    from service.releases import load_snapshot
    from service.wire import decode_request

    name = "standard input" if path == STANDARD_INPUT else str(path)
    if path != STANDARD_INPUT and not path.is_file():
        raise InputError(f"{path}: no such file, expected the JSON body of a ranking request")
    try:
        request = decode_request(sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes())
    except RequestError:
        raise
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    store = opened_store(str(settings.store), settings.local)
    try:
        snapshot = load_snapshot(store.local, engine_threads=settings.engine_threads)
    except (ArtifactError, OSError):
        if store.local is store:
            raise
        pull_again(store)
        snapshot = load_snapshot(store.local, engine_threads=settings.engine_threads)
    if not snapshot.releases:
        publish = "publish one: `adsieve index publish --help`; `adsieve demo` makes a whole store to look at"
        raise InputError(f"{shown_store(settings.store)}: holds no release", next_step=publish)
    timeout_ms = settings.timeout_ms if request.timeout_ms is None else request.timeout_ms
    return rank_request(request, snapshot, settings, Deadline.after_ms(timeout_ms)).response


def _print_table(response: "RankResponse") -> None:
    import msgspec

    from contracts.console import console, table

    ads, ranked = response.ads, table(title=f"request {response.request_id}")
    columns = {f"light\n{task}": values for task, values in ads.light.items()}
    columns |= {f"heavy\n{task}": values for task, values in (ads.heavy or {}).items()}
    for name in ("#", "ad", "scenario", "utility", *columns):
        text = name in ("ad", "scenario")
        ranked.add_column(name, justify="left" if text else "right", no_wrap=text or name == "utility", overflow="fold")
    for place, (ad_id, scenario, utility) in enumerate(zip(ads.ids, ads.scenarios, ads.utilities, strict=True)):
        values = ["" if column[place] is None else f"{column[place]:.3f}" for column in columns.values()]
        ranked.add_row(str(place + 1), ad_id, scenario, f"{utility:.4f}", *values)
    shown = console()
    shown.print(ranked)
    dropped = {reason: ids for reason, ids in msgspec.structs.asdict(response.dropped).items() if ids}
    for line in (*response.warnings, *([f"degraded: {response.degraded.detail}"] if response.degraded else [])):
        shown.print(line, soft_wrap=True)
    for reason, ids in dropped.items():
        some = ", ".join(ids[:_IDS_PRINTED]) + (", ..." if len(ids) > _IDS_PRINTED else "")
        shown.print(f"dropped: {len(ids):,} {reason}: {some}", soft_wrap=True)
    timing = msgspec.to_builtins(response.timing_ms)
    shown.print(", ".join(f"{stage} {spent:.1f} ms" for stage, spent in timing.items()))
