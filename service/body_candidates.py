"""Requests whose candidates are found in the JSON body by compiled loops, without a Python object for each.

The candidates are cut out of the body, and what is left is decoded as any other body, with a stand-in for them that
nobody else knows: where that comes back as the request's candidates, the ones cut out were the ones that count, however
often and wherever the field's name stands. Whatever is not plainly right (an escape, a text beyond ASCII, an unknown
field, no JSON at all) is left to whoever decodes the whole body, so that rules and messages stand in one place.
"""

import os
from types import ModuleType

import msgspec
import numpy as np

from contracts import compiled
from indexing.id_keys import found_keys
from indexing.id_texts import IdTexts
from service.api import RankRequest

_FIELD = b'"candidates"'
_STAND_IN = [os.urandom(16).hex()]
_CUT = msgspec.json.encode(_STAND_IN)
_MIN_BYTES = 2_048
"""Of what follows the field's name; what is shorter is decoded faster than cut out."""
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
    null.

    Args:
        min_bytes: A body with less behind the field's name is not looked at.
    """
    kernels = compiled.kernels()
    field = -1 if kernels is None else body.find(_FIELD)
    if kernels is None or field < 0 or len(body) - field < min_bytes:
        return None
    found = _found(body, field, kernels)
    if found is None:
        return None
    try:
        request = decoder.decode(b"".join((body[: found.start], _CUT, body[found.end :])))
        candidates = found.ids if found.columns is None else _columns(body, found, found.columns, kernels)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if request.candidates != _STAND_IN or candidates is None:
        return None
    msgspec.structs.force_setattr(request, "candidates", candidates)
    return request


def _found(body: bytes, field: int, kernels: ModuleType) -> _Found | None:
    """The candidates behind the field's name, which stands at ``field``."""
    data, after, end = np.frombuffer(body + kernels.TAIL, np.uint8), field + len(_FIELD), -1
    for bytes_of_id in _BYTES_OF_ID:
        room = min((len(body) - after) // bytes_of_id + 1, _MAX_IDS)
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
