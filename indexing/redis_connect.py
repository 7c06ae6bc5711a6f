"""A connection to Redis: address, password, certificates and time limits; errors that name the host.

    ADSIEVE_REDIS_PASSWORD           password, unless the URL holds one; the user stands in the URL: redis://user@host
    ADSIEVE_REDIS_CA                 file of the certificate authority that signed the server's certificate (rediss://)
    ADSIEVE_REDIS_CERT, _KEY         certificate and key of this client, where the server asks for one
    ADSIEVE_REDIS_TIMEOUT_S          longest silence while an answer is awaited, 10 by default
    ADSIEVE_REDIS_ANSWER_TIMEOUT_S   longest wait for a whole answer, which is 8 MiB at most, 60 by default
    ADSIEVE_REDIS_CONNECT_TIMEOUT_S  longest wait for a connection, 3 by default

All keys begin with ``{adsieve}:``, one hash tag, so that they lie in one slot of a cluster and one transaction may
touch several.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from contracts.errors import AdsieveError, InputError
from indexing.redis_socket import limited

SCHEMES = ("redis", "rediss", "unix")
PREFIX = "{adsieve}:"


class RedisError(AdsieveError):
    """Redis cannot be reached, is too slow, or refuses; the message names it and never holds a password."""


@dataclass(frozen=True)
class Connection:
    """A client, ``redis.Redis``, which answers in bytes, and the name that it has in messages."""

    client: Any
    name: str

    @contextmanager
    def naming(self, what: str) -> Iterator[None]:
        """Turn errors of the client inside the block into a ``RedisError`` that tells what was being done."""
        import redis

        try:
            yield
        except redis.WatchError as error:
            if _LOST_WATCH not in str(error):
                raise
            raise RedisError(f"{self.name}: cannot be reached while {what}: {error}") from error
        except redis.TimeoutError as error:
            tls = f"; {_NO_TLS}" if self.name.startswith("rediss:") and "connecting" in str(error) else ""
            raise RedisError(f"{self.name}: no answer in time while {what} ({error}){tls}; {_LIMITS}") from error
        except redis.RedisError as error:
            code = getattr(error, "status_code", None)
            text = " ".join(part for part in (code, _plain(str(error))) if part and part != "ERR")
            hint = next((f"; {hint}" for name, hint in _HINTS.items() if re.search(rf"\b{name}\b", text)), "")
            is_gone = isinstance(error, redis.ConnectionError) and not hint
            happened = "cannot be reached" if is_gone else "refuses" if hint else "failed"
            raise RedisError(f"{self.name}: {happened} while {what}: {text}{hint}") from error


def _plain(message: str) -> str:
    """Without the command that redis-py quotes: it may hold a piece of a file."""
    return message.rpartition(" of pipeline caused error: ")[2]


_LOST_WATCH = "occurred while watching"
"""What redis-py says where the connection broke while keys were watched, as it does where somebody changed one."""
_LIMITS = "ADSIEVE_REDIS_TIMEOUT_S, _ANSWER_TIMEOUT_S and _CONNECT_TIMEOUT_S set the limits"
_NO_TLS = "rediss:// asks for TLS: does the server speak it on this port? redis:// does without"
_PASSWORD = "the password is read from ADSIEVE_REDIS_PASSWORD, the user from the URL"
_HINTS = {
    "NOAUTH": _PASSWORD,
    "WRONGPASS": _PASSWORD,
    "invalid password": _PASSWORD,
    "(?i:wrong.version.number)": _NO_TLS,
    "NOPERM": f"its user needs the keys {PREFIX}* and the commands +@all -@dangerous +info",
    "OOM": "its memory is full: raise its maxmemory, or remove old releases by `adsieve index prune`",
    "READONLY": "it is a replica: give the address of its primary",
    "LOADING": "it is reading its data from disk: try again when it has done so",
    "MISCONF": "it cannot write to its disk, and so takes nothing: see its log",
    "MOVED": "another node of this cluster holds the keys: give its address",
    "CLUSTERDOWN": "no node of this cluster serves the keys now",
}
"""What helps, by what stands in an error; the errors of scripts hold it somewhere within."""


def connect(url: str, environment: Mapping[str, str] = os.environ) -> Connection:
    """Prepare a client; nothing is sent yet.

    Args:
        url: ``redis://[user[:password]@]host[:port][/database]``, ``rediss://`` with TLS, or
            ``unix:///path[?db=database]``.
        environment: Where the variables above are read.

    Raises:
        InputError: The URL or a variable is malformed, or redis-py is not installed.
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise InputError("a store in Redis needs redis-py: pip install -r requirements/serve.txt") from error
    name = _name(url)
    limit_s = _seconds(environment, "ADSIEVE_REDIS_ANSWER_TIMEOUT_S", 60.0)
    options: dict[str, Any] = {
        "socket_timeout": _seconds(environment, "ADSIEVE_REDIS_TIMEOUT_S", 10.0),
        "socket_connect_timeout": _seconds(environment, "ADSIEVE_REDIS_CONNECT_TIMEOUT_S", 3.0),
        "retry": Retry(NoBackoff(), 0),  # an append that was sent twice would count twice
        "health_check_interval": 0,
    }
    if urlsplit(url).password is None and environment.get("ADSIEVE_REDIS_PASSWORD"):
        options["password"] = environment["ADSIEVE_REDIS_PASSWORD"]
    if url.startswith("rediss:"):
        options |= _certificates(environment)
    if url.startswith("unix:"):
        del options["socket_connect_timeout"]
    try:
        kind = redis.ConnectionPool.from_url(url).connection_class
        return Connection(redis.Redis.from_url(url, connection_class=limited(kind, limit_s), **options), name)
    except (ValueError, redis.RedisError) as error:
        raise InputError(f"{name}: not the URL of a Redis: {_without_password(str(error), url)}") from None


def _name(url: str) -> str:
    """The URL without user, password and options; the database is a part of it, however redis-py lets one say it.

    Example:
        >>> _name("unix:///run/redis.sock?db=2&health_check_interval=3"), _name("redis://me:secret@host?db=2")
        ('unix:///run/redis.sock?db=2', 'redis://host:6379/2')
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError(f"{url.split('://', 1)[0]}://...: malformed; expected redis://host:port/database") from None
    if parts.scheme not in SCHEMES:
        raise InputError(f"{parts.scheme}://...: expected one of {', '.join(f'{name}://' for name in SCHEMES)}")
    database = parse_qs(parts.query).get("db", [""])[0]
    if parts.scheme == "unix":
        return f"unix://{parts.path}" + (f"?db={database}" if database not in ("", "0") else "")
    host, path = parts.hostname or "localhost", f"/{database}" if database else parts.path.rstrip("/")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port or 6379}{path}"


def _without_password(message: str, url: str) -> str:
    password = urlsplit(url).password
    return message.replace(password, "***") if password else message


def _certificates(environment: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    for variable, option in (("CA", "ssl_ca_certs"), ("CERT", "ssl_certfile"), ("KEY", "ssl_keyfile")):
        path = environment.get(f"ADSIEVE_REDIS_{variable}")
        if path and not os.path.isfile(path):
            raise InputError(f"ADSIEVE_REDIS_{variable}: no such file: {path}")
        if path:
            options[option] = path
    return options


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise InputError(f"{name}: expected a number of seconds above 0, got {text!r}")
    return seconds
