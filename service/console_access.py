"""Who may read the console: whoever has the admin token, or without one whoever sits at this machine."""

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request

from service.problems import HttpProblem
from service.settings import Settings
from service.tokens import require_token

TOKEN_SETTING = "ADSIEVE_ADMIN_TOKEN"

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


def require_console(request: Request, settings: Settings) -> None:
    """Refuse a request for the console's data.

    Without a token in the settings, what comes from this machine is answered: straight, asked for by the name of this
    machine, and by no page of another site.

    Raises:
        HttpProblem: 401.
    """
    if settings.admin_token is not None:
        require_token(request.headers.get("authorization"), settings.admin_token, setting=TOKEN_SETTING)
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
    """
    if any(name in headers for name in _FORWARDED) or headers.get("sec-fetch-site", "none") not in _OF_OWN_SITE:
        return False
    return _is_loopback(client) and _is_loopback(_host_name(headers.get("host", "")))


_OF_OWN_SITE = ("same-origin", "none")


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False
