"""Bearer tokens, compared in constant time."""

import hmac
from collections.abc import Iterable

from pydantic import SecretStr

from service.problems import HttpProblem


def authorization(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The one ``Authorization`` header of a request; None where there are two, of which a proxy may have seen another.

    Args:
        headers: Names and values, as of an ASGI scope.

    Example:
        >>> authorization([(b"host", b"adsieve"), (b"authorization", b"Bearer secret")])
        'Bearer secret'
        >>> authorization([(b"authorization", b"Bearer secret"), (b"authorization", b"Bearer x")])
    """
    given = [value for name, value in headers if name == b"authorization"]
    return given[0].decode("latin-1") if len(given) == 1 else None


def require_token(authorization: str | None, token: SecretStr | None, *, setting: str) -> None:
    """Refuse a request whose ``Authorization: Bearer`` is not the token. Without a token everybody is refused.

    Args:
        authorization: The header, read as Latin-1 as HTTP servers do.
        setting: The variable that holds the token, for the message.

    Raises:
        HttpProblem: 401.
    """
    scheme, _, given = (authorization or "").partition(" ")
    wanted = token.get_secret_value() if token else ""
    # Latin-1 gives back the bytes that were sent.
    is_right = hmac.compare_digest(given.strip().encode("latin-1", "replace"), wanted.encode())
    if not wanted or scheme.lower() != "bearer" or not is_right:
        detail = f"expected the header Authorization: Bearer TOKEN with the token of {setting}"
        detail = detail if wanted else f"{setting} is not set where the service runs, so nobody may do this"
        raise HttpProblem(401, "token", detail, headers={"WWW-Authenticate": "Bearer"})
