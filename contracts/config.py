"""Reads YAML and JSON files into frozen structs, strictly, and says what is wrong in terms of the file.

A configuration is a ``msgspec.Struct`` with ``forbid_unknown_fields``; nothing is guessed, coerced or ignored. YAML is
read by the 1.2 rules, so that ``NO`` stays a country, ``1e-3`` is a number and ``12:30`` is text; a repeated key is
refused.
"""

import json
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from contracts.artifact import write_bytes
from contracts.config_errors import explain
from contracts.errors import ConfigError

T = TypeVar("T")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LINE_WIDTH = 120


def load_config(path: str | Path, type_: type[T]) -> T:
    """Read one YAML (or ``.json``) file into ``type_``.

    Raises:
        ConfigError: The file is absent, not parseable, or does not fit ``type_``; the message names the file, the path
            in it, the value and what was expected.
    """
    return convert(read_data(path), type_, source=str(path))


def convert(data: object, type_: type[T], *, source: str) -> T:
    """Turn plain Python data into ``type_``; ``source`` stands at the front of every error, usually the file's name.

    Example:
        >>> convert(["click"], list[str], source="tasks.yaml")
        ['click']
    """
    try:
        return msgspec.convert(data, type_)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {explain(str(error), data, type_)}") from None
    except ConfigError as error:  # raised by a struct's own cross-field check, one fault a line
        raise ConfigError("\n".join(f"{source}: {line}" for line in str(error).splitlines())) from None


def with_changes(config: T, changes: Mapping[str, Any], *, source: str) -> T:
    """``config`` with some fields replaced and checked as if they stood in its file; the errors are ``convert``'s.

    Example:
        >>> class Sizes(msgspec.Struct, frozen=True, kw_only=True):
        ...     dim: int
        >>> with_changes(Sizes(dim=8), {"dim": 4}, source="options")
        Sizes(dim=4)
    """
    return convert({**msgspec.to_builtins(config), **changes}, type(config), source=source)


def read_data(path: str | Path) -> object:
    """Parse a YAML or JSON file into plain Python data; raises ConfigError with the line where it fails."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file, expected a YAML or JSON file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    try:
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)
        return yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError) as error:
        told = " ".join(str(error).split()).replace(' in "<unicode string>"', "")
        raise ConfigError(f"{path}: not parseable: {told}") from None


def dump_yaml(value: object, path: str | Path) -> None:
    """Write a struct, or plain data, as readable YAML; the file appears whole or not at all."""
    text = yaml.dump(
        msgspec.to_builtins(value),
        Dumper=_PortableDumper,
        allow_unicode=True,
        sort_keys=False,
        default_flow_style=None,
        width=_LINE_WIDTH,
    )
    write_bytes(Path(path), text.encode())


class _StrictLoader(_Loader):
    """Safe YAML loader with the scalars of YAML 1.2 and without repeated keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own class attribute)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        written = [
            self.construct_object(key, deep=True) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"
        ]
        repeated = _first_repeated(written)
        if repeated is not None:
            raise ValueError(f"line {node.start_mark.line + 1}: key {repeated!r} is written twice, expected once")
        return super().construct_mapping(node, deep=deep)


class _PortableDumper(_Dumper):
    """Quotes what either YAML 1.1 or 1.2 would take for something other than text, so that any reader gets the same."""

    yaml_implicit_resolvers = {first: list(rules) for first, rules in _Dumper.yaml_implicit_resolvers.items()}  # noqa: RUF012

    def ignore_aliases(self, data: object) -> bool:
        return True


_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
)
for _tag, _pattern, _first in _SCALARS:
    for _yaml_class in (_StrictLoader, _PortableDumper):
        _yaml_class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def _construct_int(loader: Any, node: Any) -> int:
    """The 1.1 constructor reads ``010`` as octal and keeps ``0o10`` as an error; 1.2 means 10 and 8."""
    text = loader.construct_scalar(node)
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    repeated = _first_repeated(key for key, _ in pairs)
    if repeated is not None:
        raise ValueError(f"key {repeated!r} is written twice, expected once")
    return dict(pairs)


def _first_repeated(keys: Iterable[Hashable]) -> Hashable | None:
    seen: set[Hashable] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON, expected a finite number or null")
