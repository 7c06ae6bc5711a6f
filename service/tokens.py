"""Bearer tokens, compared in constant time."""

import hmac

from pydantic import SecretStr
from starlette.datastructures import Headers

from service.problems import HttpProblem


def authorization(headers: Headers) -> str | None:
    """The one ``Authorization`` header of a request; None where there are two, of which a proxy may have seen another.

    Example:
        >>> authorization(Headers({"Authorization": "Bearer secret"}))
        'Bearer secret'
        >>> authorization(Headers(raw=[(b"authorization", b"Bearer secret"), (b"authorization", b"Bearer x")]))
    """
    given = headers.getlist("authorization")
    return given[0] if len(given) == 1 else None


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
