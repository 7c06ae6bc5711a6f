"""JSON and MessagePack, by the names that HTTP has for them."""

import msgspec

JSON, MSGPACK = "application/json", "application/msgpack"
MSGPACK_NAMES = frozenset({MSGPACK, "application/x-msgpack", "application/vnd.msgpack"})

ENCODERS: dict[str, msgspec.json.Encoder | msgspec.msgpack.Encoder] = {
    JSON: msgspec.json.Encoder(),
    MSGPACK: msgspec.msgpack.Encoder(),
}


def media_type(content_type: str | None) -> str | None:
    """``application/json`` or ``application/msgpack`` for a Content-Type header, None for any other; JSON when absent.

    Example:
        >>> media_type("Application/JSON; charset=utf-8")
        'application/json'
    """
    name = (content_type or JSON).partition(";")[0].strip().lower()
    if name in MSGPACK_NAMES:
        return MSGPACK
    return JSON if name == JSON else None
