"""Turns what msgspec reports about a struct into a sentence about the file: full path, value, and what was expected.

msgspec writes ``$.features[...].kind`` because it does not keep the keys of mappings; they are found again here by
converting the mapping with one entry at a time and watching for the same message.
"""

import difflib
import json
import re
from typing import Any

import msgspec
from msgspec import inspect

from contracts.errors import ConfigError

_MESSAGE = re.compile(r"^(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<index>\d+)\]|\[\.\.\.\]")
_FIELD = re.compile(r"^Object (?P<fault>contains unknown|missing required) field `(?P<name>.*)`$", re.DOTALL)
_EXPECTED = re.compile(r"^Expected `(?P<kinds>[^`]+)`(?P<rest>.*?)(?:, got .*)?$", re.DOTALL)
_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list"}
_KINDS |= {"object": "a mapping", "datetime": "a time"}
_SIGNS = {">=": "{} or more", "<=": "at most {}", ">": "more than {}", "<": "less than {}"}
_MAX_SHOWN = 80

_SOME_KEY = "*"
"""Of a mapping; nobody knows which."""
UNREADABLE = object()
"""Instead of data in which nobody can look, as it is broken elsewhere: messages then tell of no value."""

Path = tuple[str | int, ...]


def explain(message: str, data: object, type_: Any) -> str:
    """One line of ``<path>: expected ..., got ...`` for a msgspec validation message about ``data``."""
    field, text = fault_of(message, data, type_)
    return f"{field}: {text}" if field else text


def fault_of(message: str, data: object, type_: Any) -> tuple[str, str]:
    """The same in two parts: the path as ``a.b[0]``, empty for the whole, and what was expected and found there."""
    parts = _MESSAGE.match(message)
    if parts is None:
        return "", message
    path = _concrete_path(parts["path"] or "", message, data, type_)
    value = _value_at(data, path)
    expected = _type_at(inspect.type_info(type_), path)
    field = _FIELD.match(parts["what"])
    if parts["key"]:
        return _dotted(path), _explain_key(value, _not_null(expected))
    if field is not None:
        value = data if data is UNREADABLE else value
        return _explain_field(field["fault"], field["name"], path, value, _not_null(expected))
    got = "" if data is UNREADABLE else f", got {show(value)}"
    return _dotted(path), f"{_wanted(parts['what'], expected)}{got}"


def _wanted(what: str, expected: Any) -> str:
    """The first half of a message: what was expected, or where msgspec tells of no type, its own words."""
    described = _describe(expected)
    if described is None and _EXPECTED.match(what) is None:
        return what[:1].lower() + plain_words(what)[1:]
    return f"expected {described or plain_words(what)}"


def plain_words(what: str) -> str:
    """What msgspec expected, in words, without what it got.

    Example:
        >>> plain_words("Expected `int | null`, got `str`"), plain_words("Expected `str` of length >= 1")
        ('a whole number or null', 'text of length 1 or more')
    """
    parts = _EXPECTED.match(what)
    if parts is None:
        return what.split(", got ")[0].replace("`", "")
    kinds = " or ".join(_KINDS.get(kind, kind) for kind in parts["kinds"].split(" | "))
    rest = parts["rest"]
    for sign, words in _SIGNS.items():
        limit = re.search(rf" {sign} ([0-9.]+)$", rest)
        if limit is not None:
            number = _plain(float(limit[1]))
            rest = rest[: limit.start()] + (" " if "length" in rest else " of ") + words.format(number)
    return f"{kinds}{rest}".replace("`", "")


def show(value: object) -> str:
    """A value as it would stand in the file, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def one_of(names: Any) -> str:
    """``one of 'a', 'b'``, the usual end of a message."""
    return "one of " + ", ".join(repr(name) for name in names)


def suggestion(name: str, known: Any) -> str:
    """``; did you mean 'kind'?`` where a known name is close, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _explain_key(mapping: Any, expected: Any) -> str:
    if not isinstance(mapping, dict):  # nobody knows the value: behind the fault it could not be read
        return "expected every key to be text"
    odd = next((key for key in mapping if not isinstance(key, str)), None)
    if odd is not None:
        return f"expected every key to be text, got {show(odd)} (put it in quotes)"
    known = getattr(getattr(expected, "key_type", None), "values", ())
    odd = next((key for key in mapping if key not in known), "")
    return f"unknown key {show(odd)}, expected {one_of(known)}{suggestion(odd, known)}"


def _explain_field(fault: str, name: str, path: Path, value: Any, expected: Any) -> tuple[str, str]:
    fields = {field.encode_name: field.type for field in getattr(expected, "fields", ())}
    place = _dotted((*path, name))
    if fault == "contains unknown":
        found = f" with value {show(value.get(name))}" if isinstance(value, dict) else ""
        return place, f"unknown field{found}, expected {one_of(fields)}{suggestion(name, fields)}"
    wanted = _describe(fields.get(name)) or "a value"
    got = "" if value is UNREADABLE else f", got {show(value)}"
    return place, f"required field is missing, expected {wanted}{got}"


def _dotted(path: Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _concrete_path(pattern: str, message: str, data: object, type_: Any) -> Path:
    path: Path = ()
    for step in _STEP.finditer(pattern):
        if step["field"] is not None:
            path = (*path, step["field"])
        elif step["index"] is not None:
            path = (*path, int(step["index"]))
        else:
            path = (*path, _failing_key(path, message, data, type_))
    return path


def _failing_key(path: Path, message: str, data: Any, type_: Any) -> str:
    mapping = _value_at(data, path)
    if not isinstance(mapping, dict):  # it could not be read, or the field comes again as something else
        return _SOME_KEY
    for key, value in mapping.items():
        try:
            msgspec.convert(_replaced(data, path, {key: value}), type_)
        except (msgspec.ValidationError, ConfigError) as error:
            if str(error) == message:
                return key
    return _SOME_KEY


def _replaced(data: Any, path: Path, leaf: object) -> Any:
    """``data`` with what stands at ``path`` replaced, without touching the original."""
    if not path:
        return leaf
    copy = data.copy()
    copy[path[0]] = _replaced(data[path[0]], path[1:], leaf)
    return copy


def _value_at(data: Any, path: Path) -> Any:
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _type_at(kind: Any, path: Path) -> Any:
    """The msgspec type of what stands at ``path``, or None where the type does not say."""
    for step in path:
        kind = _child_type(_not_null(kind), step)
    return kind


def _child_type(kind: Any, step: str | int) -> Any:
    if isinstance(kind, inspect.StructType):
        return next((field.type for field in kind.fields if field.encode_name == step), None)
    if isinstance(kind, inspect.DictType):
        return kind.value_type
    if isinstance(kind, inspect.TupleType):
        return next(iter(kind.item_types[int(step) :]), None)
    return getattr(kind, "item_type", None)


def _not_null(kind: Any) -> Any:
    if isinstance(kind, inspect.UnionType):
        members = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        return members[0] if len(members) == 1 else None
    return kind


def _describe(kind: Any) -> str | None:
    """What may stand there, in words; None where msgspec's own words say it as well."""
    if isinstance(kind, inspect.UnionType):
        members = [_describe(member) or _PLAIN.get(type(member)) for member in kind.types]
        words = " or ".join(member.removeprefix("one of ") for member in members if member)
        return words if any(map(_describe, kind.types)) else None
    if isinstance(kind, inspect.LiteralType):
        return one_of(kind.values)
    if isinstance(kind, inspect.StructType):
        return "a mapping with " + ", ".join(field.encode_name for field in kind.fields)
    if isinstance(kind, inspect.IntType | inspect.FloatType) and (limits := number_range(kind)):
        return f"{'a whole number' if isinstance(kind, inspect.IntType) else 'a number'} {limits}"
    return None


_PLAIN: dict[type, str] = {
    inspect.NoneType: "null",
    inspect.BoolType: "true or false",
    inspect.StrType: "text",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
}


def number_range(kind: inspect.IntType | inspect.FloatType) -> str:
    """The limits of a number; empty where it has none.

    Example:
        >>> number_range(inspect.IntType(ge=1, le=16_384)), number_range(inspect.FloatType(ge=0, lt=1))
        ('from 1 to 16,384', 'of 0 or more and below 1')
    """
    if kind.ge is not None and kind.le is not None:
        return f"from {_plain(kind.ge)} to {_plain(kind.le)}"
    limits = (
        ("above {}", kind.gt),
        ("of {} or more", kind.ge),
        ("of at most {}", kind.le),
        ("below {}", kind.lt),
    )
    return " and ".join(words.format(_plain(limit)) for words, limit in limits if limit is not None)


def _plain(limit: float) -> str:
    return f"{int(limit):,}" if float(limit).is_integer() else f"{limit:g}"
