"""Calls of the heavy stage between hosts, as MessagePack: encoded rows and logits as raw little-endian arrays.

Rows are encoded where the request arrived, by the schema of the version that the call names: the host that runs the
model looks up and computes, nothing else. Shapes: N survivors, T tasks.
"""

from urllib.parse import quote, unquote

import msgspec
import numpy as np

from contracts.encoding import Encoded
from contracts.errors import ArtifactError, InputError, RequestError
from contracts.layout import SideLayout
from service.api import MAX_REQUEST_ID
from service.heavies import LoadedHeavy
from service.heavy import HeavyCall

PATH = "/heavy"
REQUEST_ID_HEADER = b"x-request-id"
"""Beside a call, for the host's log: the id of the request, percent-encoded."""

_IDS, _FLOATS = np.dtype("<i4"), np.dtype("<f4")


class Rows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Encoded rows of one side: int32 and float32, row by row."""

    count: int
    ids: bytes
    floats: bytes


class HeavyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request's survivors for one heavy ranker. ``timeout_ms`` is what is left of its deadline, null for none."""

    version: str
    query: Rows
    ads: Rows
    pair: Rows | None = None
    timeout_ms: float | None = None


class HeavyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Logits [N, T], float32, row by row; the tasks in order."""

    version: str
    tasks: tuple[str, ...]
    logits: bytes


_REQUEST = msgspec.msgpack.Decoder(HeavyRequest)
_ANSWER = msgspec.msgpack.Decoder(HeavyAnswer)


def encode_call(call: HeavyCall, *, timeout_ms: float | None) -> bytes:
    """The body that asks for a call."""
    return msgspec.msgpack.encode(
        HeavyRequest(
            version=call.heavy.version,
            query=_rows(call.query),
            ads=_rows(call.ads),
            pair=None if call.pair is None else _rows(call.pair),
            timeout_ms=timeout_ms,
        )
    )


def request_id_header(request_id: str) -> str:
    """Whatever characters the id has, as a header may hold it."""
    return quote(request_id, safe="")


def request_id_of(header: str | None) -> str | None:
    """The id in a header, cut where it is longer than any request's.

    Example:
        >>> request_id_of(request_id_header("é\\n1"))
        'é\\n1'
    """
    return None if header is None else unquote(header)[:MAX_REQUEST_ID]


def decode_call(body: bytes) -> HeavyRequest:
    """The request in a body.

    Raises:
        RequestError: A field is unknown, missing or of a wrong type.
        InputError: The body is no MessagePack.
    """
    try:
        return _REQUEST.decode(body)
    except msgspec.ValidationError as error:
        raise RequestError(str(error), field="body") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"the body is not valid application/msgpack: {error}") from None


def call_of(request: HeavyRequest, heavy: LoadedHeavy, *, max_survivors: int) -> HeavyCall:
    """The call that a request asks of a heavy ranker.

    Raises:
        RequestError: Rows that do not fit the ranker's schema, or are too many.
    """
    encoders, count = heavy.encoders, request.ads.count
    if not 1 <= count <= max_survivors:
        raise RequestError(f"expected 1 to {max_survivors:,} rows, got {count:,}", field="ads.count")
    if (request.pair is None) != (encoders.pair_encoder is None):
        wanted = "none" if encoders.pair_encoder is None else "rows"
        raise RequestError(f"expected {wanted} for {heavy.version}", field="pair")
    pair = None
    if request.pair is not None and encoders.pair_encoder is not None:
        pair = _encoded(request.pair, "pair", encoders.pair_encoder.layout, count)
    return HeavyCall(
        heavy=heavy,
        query=_encoded(request.query, "query", encoders.query_encoder.layout, 1),
        ads=_encoded(request.ads, "ads", encoders.ad_encoder.layout, count),
        pair=pair,
        members=np.arange(count),
    )


def encode_logits(call: HeavyCall, logits: np.ndarray) -> bytes:
    """The answer to a call."""
    values = np.ascontiguousarray(logits, _FLOATS).tobytes()
    return msgspec.msgpack.encode(HeavyAnswer(version=call.heavy.version, tasks=call.heavy.tasks, logits=values))


def decode_logits(body: bytes, call: HeavyCall) -> np.ndarray:
    """Logits [N, T] of an answer.

    Raises:
        ArtifactError: It is no answer to this call, or holds what is no number.
    """
    try:
        answer = _ANSWER.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ArtifactError(f"the heavy host's answer cannot be read: {error}") from None
    heavy = call.heavy
    if (answer.version, answer.tasks) != (heavy.version, heavy.tasks):
        raise ArtifactError(
            f"the heavy host answered for {answer.version} {answer.tasks}, asked for {heavy.version} {heavy.tasks}"
        )
    size = len(call.ads) * len(heavy.tasks) * _FLOATS.itemsize
    if len(answer.logits) != size:
        raise ArtifactError(f"the heavy host's answer holds {len(answer.logits)} bytes of logits, expected {size}")
    logits = np.frombuffer(answer.logits, _FLOATS).reshape(len(call.ads), len(heavy.tasks)).astype(np.float32)
    if not np.isfinite(logits).all():
        raise ArtifactError("a logit of the heavy host is not finite")
    return logits


def _rows(encoded: Encoded) -> Rows:
    return Rows(
        count=len(encoded),
        ids=np.ascontiguousarray(encoded.ids, _IDS).tobytes(),
        floats=np.ascontiguousarray(encoded.floats, _FLOATS).tobytes(),
    )


def _encoded(rows: Rows, name: str, layout: SideLayout, count: int) -> Encoded:
    if rows.count != count:
        raise RequestError(f"expected {count}, got {rows.count}", field=f"{name}.count")
    floats = _array(rows.floats, _FLOATS, count, layout.num_floats, f"{name}.floats")
    if not np.isfinite(floats).all():
        raise RequestError("holds what is no finite number", field=f"{name}.floats")
    return Encoded(_array(rows.ids, _IDS, count, layout.num_ids, f"{name}.ids"), floats)


def _array(data: bytes, dtype: np.dtype, count: int, width: int, field: str) -> np.ndarray:
    expected = count * width * dtype.itemsize
    if len(data) != expected:
        raise RequestError(f"expected {expected} bytes, {width} values a row, got {len(data)}", field=field)
    return np.frombuffer(data, dtype).reshape(count, width)
