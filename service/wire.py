"""Bytes to requests and answers to bytes, as JSON or MessagePack; every fault names its field."""

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from contracts.config_errors import UNREADABLE, fault_of
from contracts.errors import InputError, RequestError
from indexing.id_keys import Keys, text_keys
from indexing.id_texts import ChosenTexts, IdTexts
from service.api import BatchResponse, RankRequest, RankResponse
from service.body_candidates import decode_cut
from service.media import JSON, MSGPACK

T = TypeVar("T")

Decoder: TypeAlias = msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]


class _Batch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``BatchRequest``, so that one request that is wrong costs no other its answer."""

    requests: list[msgspec.Raw]


def _ids_as_json(value: Any) -> msgspec.Raw:
    if isinstance(value, ChosenTexts):
        return msgspec.Raw(value.json())
    raise TypeError(f"an answer cannot hold {type(value).__name__}")


_ENCODERS: dict[str, msgspec.json.Encoder | msgspec.msgpack.Encoder] = {
    JSON: msgspec.json.Encoder(enc_hook=_ids_as_json),
    MSGPACK: msgspec.msgpack.Encoder(enc_hook=list),
}
_JSON_DECODER = msgspec.json.Decoder(RankRequest)
_DECODERS: dict[str, Decoder[RankRequest]] = {
    JSON: _JSON_DECODER,
    MSGPACK: msgspec.msgpack.Decoder(RankRequest),
}
_BATCH_DECODERS: dict[str, Decoder[_Batch]] = {
    JSON: msgspec.json.Decoder(_Batch),
    MSGPACK: msgspec.msgpack.Decoder(_Batch),
}


class CandidateColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Checked candidate columns, each as long as ``ids``.

    ``keys`` are the ids, to be looked up in any number of indexes; ``bids`` is float64 [C], NaN where the request has
    null.
    """

    ids: Sequence[str]
    keys: Keys
    bids: np.ndarray | None = None
    objectives: list[str | None] | None = None
    pair: dict[str, list[Any]] = msgspec.field(default_factory=dict)


def decode_request(body: bytes | msgspec.Raw, media: str = JSON) -> RankRequest:
    """The bytes of a body to a request; the errors are those of ``decode``."""
    if media == JSON and (request := decode_cut(bytes(body), _JSON_DECODER)) is not None:
        return request
    return _decode(body, _DECODERS[media], media)


def split_batch(body: bytes, media: str = JSON) -> list[msgspec.Raw]:
    """The requests of a batch, each still to be decoded; the errors are those of ``decode``."""
    return _decode(body, _BATCH_DECODERS[media], media).requests


def decode(body: bytes, type_: type[T]) -> T:
    """JSON to a value of a type.

    Raises:
        RequestError: A field is unknown, missing, or of a wrong type or value.
        InputError: The body is no JSON at all.
    """
    return _decode(body, msgspec.json.Decoder(type_), JSON)


def _decode(body: bytes | msgspec.Raw, decoder: Decoder[T], media: str) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _request_error(str(error), body, decoder, media) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InputError(f"the body is not valid {media}: {error}") from None


def encode_response(response: RankResponse | BatchResponse, media: str = JSON) -> bytes:
    """The answer as bytes."""
    return _ENCODERS[media].encode(response)


def candidate_columns(candidates: Sequence[str] | dict[str, Any], *, max_candidates: int) -> CandidateColumns:
    """Check types and lengths of the candidate columns.

    Raises:
        RequestError: Too many, a column that is no list, columns of unequal length, or a value of a wrong type.
    """
    if not isinstance(candidates, dict):
        _check_count(candidates, "candidates", max_candidates)
        return CandidateColumns(ids=candidates, keys=_keys_of_texts(candidates))
    columns = dict(candidates)
    ids = columns.pop("ids", None)
    if ids is None:
        raise RequestError("required when candidates are columns, got none", field="candidates.ids")
    _check_list(ids, "candidates.ids")
    _check_count(ids, "candidates.ids", max_candidates)
    keys = _keys(ids)
    for name, column in columns.items():
        _check_list(column, f"candidates.{name}")
        if len(column) != len(ids):
            raise RequestError(
                f"expected one value for each id: {len(ids)}, got {len(column)}", field=f"candidates.{name}"
            )
    bids, objectives = columns.pop("bids", None), columns.pop("objectives", None)
    if objectives is not None:
        _check_column(objectives, "candidates.objectives", (str, type(None)), "a string or null")
    return CandidateColumns(ids=ids, keys=keys, bids=_bids(bids), objectives=objectives, pair=columns)


def _keys(ids: Sequence[str]) -> Keys:
    """Keys of the ids, in whose making it shows whether all are texts."""
    try:
        return _keys_of_texts(ids)
    except TypeError:
        _check_column(ids, "candidates.ids", (str,), "a string")
        raise


def _keys_of_texts(ids: Sequence[str]) -> Keys:
    return ids.keys if isinstance(ids, IdTexts) else text_keys(ids)


def _bids(bids: list[Any] | np.ndarray | None) -> np.ndarray | None:
    """Float64 [C], NaN for null. A NaN that was sent becomes infinite, so that it is refused and not taken for null."""
    if bids is None or isinstance(bids, np.ndarray):
        return bids
    _check_list(bids, "candidates.bids")
    values = _numbers(bids)
    if values is not None:
        return values
    _check_column(bids, "candidates.bids", (float, int, type(None)), "a number or null")
    try:
        values = np.array(bids, np.float64)
    except OverflowError:
        values = np.array([_float(bid) for bid in bids], np.float64)
    sent = np.isnan(values)
    if sent.any():
        for position in np.flatnonzero(sent):
            if bids[position] is not None:
                values[position] = np.inf
    return values


def _numbers(bids: list[Any]) -> np.ndarray | None:
    """Float64 [C] of plain numbers, in a quarter of the time that looking at each one's type takes.

    None where something is no number, a NaN, or a 0 or 1, which might be a boolean.
    """
    try:
        values = np.frombuffer(struct.pack(f"{len(bids)}d", *bids))
    except (struct.error, OverflowError):
        return None
    doubtful = (values == 0) | (values == 1) | np.isnan(values)
    return None if doubtful.any() else values


def _float(bid: float | None) -> float | None:
    try:
        return None if bid is None else float(bid)
    except OverflowError:  # an integer beyond float64
        return float("inf") if bid is not None and bid > 0 else float("-inf")


def _check_count(ids: Sequence[str], field: str, max_candidates: int) -> None:
    if len(ids) > max_candidates:
        raise RequestError(f"at most {max_candidates:,} candidates, got {len(ids):,}", field=field)


def _check_list(column: object, field: str) -> None:
    if not isinstance(column, list | IdTexts | np.ndarray):
        raise RequestError(f"expected a list, got {_name(column)}", field=field)


def _check_column(column: Any, field: str, types: tuple[type, ...], expected: str) -> None:
    _check_list(column, field)
    if set(map(type, column)).issubset(types):
        return
    position = next(position for position, value in enumerate(column) if type(value) not in types)
    raise RequestError(f"expected {expected}, got {_name(column[position])}", field=f"{field}[{position}]")


def _name(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", dict: "an object", list: "a list", bytes: "bytes"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _request_error(message: str, body: bytes | msgspec.Raw, decoder: Decoder[T], media: str) -> RequestError:
    """The RequestError of a msgspec validation message, with the path of the field as ``a.b[0]``."""
    try:
        data: Any = (msgspec.json if media == JSON else msgspec.msgpack).decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):  # behind the fault it is broken too
        data = UNREADABLE
    field, text = fault_of(message, data, decoder.type)
    return RequestError(text, field=field or "body")
