"""Who may read the console: whoever has the admin token, or without one whoever sits at this machine."""

from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.requests import Request

from service.problems import HttpProblem
from service.settings import Settings
from service.tokens import authorization, require_token

TOKEN_SETTING = "ADSIEVE_ADMIN_TOKEN"

_FORWARDED = {"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"}
_FORWARDED_PREFIX = "x-forwarded-"


def require_console(request: Request, settings: Settings) -> None:
    """Refuse a request for the console's data.

    Without a token in the settings, what comes from this machine is answered: straight, asked for by the name of this
    machine, and by no page of another site.

    Raises:
        HttpProblem: 401.
    """
    if settings.admin_token is not None:
        require_token(authorization(request.headers.raw), settings.admin_token, setting=TOKEN_SETTING)
    elif not is_local(request.client.host if request.client else "", request.headers):
        detail = f"without {TOKEN_SETTING} the console answers on the service's own machine alone; set it, and sign in"
        raise HttpProblem(401, "token", detail, headers={"WWW-Authenticate": "Bearer"})


def is_local(client: str, headers: Mapping[str, str]) -> bool:
    """Whether a request comes from this machine straight to it.

    Example:
        >>> is_local("127.0.0.1", {"host": "localhost:8000"})
        True
        >>> is_local("127.0.0.1", {"host": "rebound.example:8000"})  # a page of another site, under a name of its own
        False
        >>> is_local("127.0.0.1", {"host": "localhost", "x-forwarded-for": "203.0.113.9"})
        False
        >>> is_local("127.0.0.1", {"host": "localhost", "origin": "https://other.example"})
        False
    """
    if any(name in _FORWARDED or name.startswith(_FORWARDED_PREFIX) for name in headers):
        return False
    if headers.get("sec-fetch-site", "none") not in _OF_OWN_SITE or not _is_of_own_page(headers):
        return False
    return _is_loopback(client) and _is_loopback(_host_name(headers.get("host", "")))


def _is_of_own_page(headers: Mapping[str, str]) -> bool:
    """Whether no page of another origin asks: browsers without Sec-Fetch-Site tell the origin of what they post."""
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


_OF_OWN_SITE = ("same-origin", "none")


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return name == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None  # a socket for IPv4 and IPv6
    return (mapped or address).is_loopback
