"""Requests whose candidates and features are found in the JSON body by compiled loops, without an object for each.

Both are cut out of the body, and what is left is decoded as any other body, with stand-ins for them that nobody else
knows: where these come back as the request's fields, what was cut out is what counts, however often and wherever the
fields' names stand. Whatever is not plainly right (an escape, a text beyond ASCII, an unknown field, no JSON at all) is
left to whoever decodes the whole body, so that rules and messages stand in one place.
"""

import os
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from contracts import compiled
from contracts.query_in_body import QueryInBody, query_in_body
from indexing.id_keys import found_keys
from indexing.id_texts import IdTexts
from service.api import RankRequest

_QUERY, _CANDIDATES = b'"query"', b'"candidates"'
_NOBODY = os.urandom(16).hex()
_STAND_INS: dict[bytes, Any] = {_QUERY: {_NOBODY: 0}, _CANDIDATES: [_NOBODY]}
_CUTS = {field: msgspec.json.encode(value) for field, value in _STAND_INS.items()}
_MIN_BYTES = 2_048
"""Of a body behind the name of the candidates' field, and of a whole one; what is shorter is decoded faster."""
_BYTES_OF_ID = 8, 3
"""With quotes and comma: as are usual, then of those that take most room."""
_MAX_IDS = 1 << 17
"""Longer lists are left to the decoder, after which most are refused: their heads would cost several times as much."""
_MAX_COLUMNS = 64

Column = IdTexts | np.ndarray | list[object]


class _Found(msgspec.Struct, frozen=True):
    """Candidates and where they begin and end in the body; ``columns`` is None where they are a list of ids."""

    start: int
    end: int
    ids: IdTexts
    bids: np.ndarray
    columns: list[list[int]] | None


def decode_cut(
    body: bytes, decoder: msgspec.json.Decoder[RankRequest], *, min_bytes: int = _MIN_BYTES
) -> RankRequest | None:
    """The request of a body; None where all of it is to be decoded.

    Its ``candidates`` are ``IdTexts``, or columns of which ``ids`` may be such and ``bids`` an array of fp64, NaN for
    null; its ``query`` is a ``QueryInBody``. Either may be as the decoder gives it.

    Args:
        min_bytes: Of what is shorter nothing is looked at.
    """
    kernels = compiled.kernels()
    if kernels is None or len(body) < min_bytes:
        return None
    data = np.frombuffer(body + kernels.TAIL, np.uint8)
    query = _query(body, data, kernels)
    found = _candidates(body, data, query, min_bytes, kernels)
    if query is not None and found is not None and found.start < query.start < found.end:
        query = None  # it is a column of the candidates
    cuts = []
    if query is not None:
        cuts.append((query.start, query.end, _CUTS[_QUERY]))
    if found is not None:
        cuts.append((found.start, found.end, _CUTS[_CANDIDATES]))
    if not cuts:
        return None
    try:
        request = decoder.decode(_without(body, sorted(cuts)))
        candidates = None
        if found is not None:
            candidates = found.ids if found.columns is None else _columns(body, found, found.columns, kernels)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if query is not None:
        if request.query != _STAND_INS[_QUERY]:
            return None
        msgspec.structs.force_setattr(request, "query", query)
    if found is not None:
        if request.candidates != _STAND_INS[_CANDIDATES] or candidates is None:
            return None
        msgspec.structs.force_setattr(request, "candidates", candidates)
    return request


def _without(body: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    """The body with something else in some places, which are in order."""
    parts, done = [], 0
    for start, end, put in cuts:
        parts += [body[done:start], put]
        done = end
    return b"".join([*parts, body[done:]])


def _query(body: bytes, data: np.ndarray, kernels: ModuleType) -> QueryInBody | None:
    """The features behind the first ``"query"``."""
    field = body.find(_QUERY)
    return None if field < 0 else query_in_body(data, field + len(_QUERY), kernels)


def _candidates(
    body: bytes, data: np.ndarray, query: QueryInBody | None, min_bytes: int, kernels: ModuleType
) -> _Found | None:
    """The candidates behind the first ``"candidates"`` after the query, or where there is none, before it."""
    field = body.find(_CANDIDATES, 0 if query is None else query.end)
    if field < 0 and query is not None:
        field = body.find(_CANDIDATES, 0, query.start)
    return None if field < 0 or len(body) - field < min_bytes else _found(data, field, len(body), kernels)


def _found(data: np.ndarray, field: int, num_bytes: int, kernels: ModuleType) -> _Found | None:
    """The candidates behind the field's name, which stands at ``field``."""
    after, end = field + len(_CANDIDATES), -1
    for bytes_of_id in _BYTES_OF_ID:
        room = min((num_bytes - after) // bytes_of_id + 1, _MAX_IDS)
        starts, lengths, heads = np.empty(room, np.int64), np.empty(room, np.int64), np.empty((room, 2), np.uint64)
        bids, columns, noted = np.empty(room), np.empty((_MAX_COLUMNS, 5), np.int64), np.empty(5, np.int64)
        end = kernels.read_candidates(data, after, starts, lengths, heads, bids, columns, noted)
        if end != kernels.NO_ROOM or room == _MAX_IDS:
            break
    if end < 0:
        return None
    num_ids, longest, num_bids, num_columns, start = noted.tolist()
    ids = IdTexts(found_keys(data, starts[:num_ids], lengths[:num_ids], heads[:num_ids], longest))
    return _Found(start, end, ids, bids[:num_bids], None if num_columns < 0 else columns[:num_columns].tolist())


def _columns(body: bytes, found: _Found, columns: list[list[int]], kernels: ModuleType) -> dict[str, Column] | None:
    """The columns by name; None where a name comes twice."""
    named: dict[str, Column] = {}
    for kind, name, name_end, start, end in columns:
        values: Column
        if kind == kernels.TEXTS:
            values = found.ids
        elif kind == kernels.NUMBERS:
            values = found.bids
        else:
            values = msgspec.json.decode(body[start:end])
        named[body[name:name_end].decode("ascii")] = values
    return named if len(named) == len(columns) else None
