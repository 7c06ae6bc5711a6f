"""Updates as people and systems hand them in: lines of JSON, checked field by field, with errors that say where.

A line is one update::

    {"ad_id": "ad-1", "takedown": true}
    {"ad_id": "ad-2", "status": "paused", "bid": null, "at": "2026-03-01T10:00:00Z"}
    {"ad_id": "ad-3", "budget": 0}
    {"ad_id": "ad-4", "content": {"scenario": "shopping", "valid_from": "2026-03-01T10:00:00Z", "objective": "click",
                                  "advertiser_id": "adv-1", "features": {"category": "shoes", "price": 3.5}}}

Times are RFC 3339 with a zone or epoch milliseconds; without ``at`` it is now, or the ``valid_from`` of
content that lies ahead. Of a key that comes twice in one object the last value counts.
"""

import math
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from contracts.config_errors import show, suggestion
from contracts.errors import InputError, RequestError
from contracts.moments import is_told
from contracts.records import STATUSES
from contracts.rows import parse_time
from indexing.update_record import Content, Update, check_nesting

FIELDS = ("ad_id", "at", "status", "bid", "takedown", "budget", "content")
CONTENT_FIELDS = ("scenario", "valid_from", "advertiser_id", "objective", "features")


def read_lines(lines: Iterable[bytes], *, source: str, now_us: int) -> Iterator[tuple[str, Update]]:
    """Read lines of JSON; empty ones are passed over.

    Args:
        lines: UTF-8.
        source: File, for messages.
        now_us: What ``at`` is where nothing is said, microseconds UTC.

    Returns:
        Each update, and where it stands.

    Raises:
        InputError: Names file, line and field, the value, and what was expected.
    """
    decoder = msgspec.json.Decoder()
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = line.removeprefix(BOM_UTF8)
        if not line.strip():
            continue
        where = f"{source}: line {number}"
        try:
            data = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{where}: not JSON: {error}") from None
        except RecursionError:
            raise InputError(f"{where}: nested too deeply, expected one object of an update") from None
        yield where, update_of(data, where=where, now_us=now_us)


def update_of(data: object, *, where: str, now_us: int) -> Update:
    """Check one update that was given as plain data.

    Example:
        >>> update_of({"ad_id": "ad-1", "bid": 1.5}, where="line 1", now_us=7)
        Update(seq=0, ad_id='ad-1', at=7, status=None, bid=1.5, takedown=None, budget=UNSET, content=None)
    """
    fields = _Fields(data, FIELDS, where, "")
    content = _content(fields, now_us) if fields.has("content") else None
    default = max(now_us, content.valid_from) if content is not None else now_us
    update = Update(
        ad_id=fields.required("ad_id", identifier),
        at=fields.optional("at", parse_time, default),
        status=fields.optional("status", status, None),
        bid=fields.nullable("bid", bid),
        takedown=fields.optional("takedown", flag, None),
        budget=fields.nullable("budget", number),
        content=content,
    )
    if not update.has_state and content is None:
        raise InputError(f"{where}: expected at least one of {', '.join(FIELDS[2:])}, got only {show(data)}")
    return update


def _content(fields: "_Fields", now_us: int) -> Content:
    inner = _Fields(fields.data["content"], CONTENT_FIELDS, fields.where, "content.")
    at = fields.optional("at", parse_time, now_us)
    features = inner.required("features", _features)
    return Content(
        scenario=inner.required("scenario", text),
        valid_from=inner.optional("valid_from", parse_time, at),
        advertiser_id=inner.optional("advertiser_id", identifier, None),
        objective=inner.optional("objective", text, None),
        features=features,
    )


class _Fields:
    """The fields of one JSON object, each taken with the check of its value."""

    def __init__(self, data: object, known: tuple[str, ...], where: str, prefix: str) -> None:
        self.where, self._prefix = where, prefix
        if not isinstance(data, Mapping):
            raise InputError(f"{where}: {prefix[:-1] or 'the line'}: expected an object, got {show(data)}")
        self.data = data
        for name in data:
            if name not in known:
                expected = f"expected one of {', '.join(known)}{suggestion(str(name), known)}"
                raise InputError(f"{where}: {prefix}{name}: unknown field, {expected}")

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def required(self, name: str, check: Callable[[Any, str], Any]) -> Any:
        if name not in self.data:
            raise InputError(f"{self.where}: {self._prefix}{name}: missing")
        return self._checked(name, check)

    def optional(self, name: str, check: Callable[[Any, str], Any], default: Any) -> Any:
        """``default`` where the field is absent or null."""
        return self._checked(name, check) if self.has(name) else default

    def nullable(self, name: str, check: Callable[[Any, str], Any]) -> Any:
        """UNSET where the field is absent; null means none."""
        if name not in self.data:
            return UNSET
        return self._checked(name, check) if self.has(name) else None

    def _checked(self, name: str, check: Callable[[Any, str], Any]) -> Any:
        try:
            return check(self.data[name], f"{self._prefix}{name}")
        except (InputError, RequestError) as error:
            raise InputError(f"{self.where}: {error}") from None


def identifier(value: object, path: str) -> str:
    """An id as an index takes it: any valid Unicode text, the empty one included."""
    if isinstance(value, str):
        try:
            value.encode()
            return value
        except UnicodeEncodeError:
            pass
    raise InputError(f"{path}: expected text, got {show(value)}")


def text(value: object, path: str) -> str:
    """Valid Unicode text, not empty."""
    if value == "":
        raise InputError(f"{path}: expected text, got {show(value)}")
    return identifier(value, path)


def status(value: object, path: str) -> str:
    """One of the statuses of an ad."""
    if value in STATUSES:
        return str(value)
    near = suggestion(str(value), STATUSES)
    raise InputError(f"{path}: expected one of {', '.join(STATUSES)}, got {show(value)}{near}")


def flag(value: object, path: str) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise InputError(f"{path}: expected true or false, got {show(value)}")


def number(value: object, path: str) -> float:
    """A finite number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise InputError(f"{path}: expected a finite number or null, got {show(value)}")


def bid(value: object, path: str) -> float:
    """A finite number of at least 0, as fp32 holds it."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LARGEST_BID:
        return float(value)
    raise InputError(f"{path}: expected a finite number of at least 0, or null, got {show(value)}")


def check_moment(micros: int, path: str) -> None:
    """Refuse microseconds UTC that no calendar holds."""
    if not is_told(micros):
        raise InputError(f"{path}: expected a time of the years 1 to 9999 UTC, got {micros} microseconds since 1970")


_LARGEST_BID = 3.4e38


def _features(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a mapping of column to value, got {show(value)}")
    check_nesting(value, path)
    return value
