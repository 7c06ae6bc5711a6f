"""Whatever is wrong in a configuration, of any command: one line names file, key, value and what may stand there."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from contracts.config import convert
from contracts.config_errors import number_range
from contracts.errors import ConfigError
from distill.config import DistillConfig
from distill.presets import PRESETS as STUDENTS
from heavy_ranker.config import HeavyConfig
from heavy_ranker.presets import PRESETS as TEACHERS
from indexing.config import IndexConfig

WHOLE = (TEACHERS["small"](), STUDENTS["shopping"](), IndexConfig())
Key = tuple[str, ...]


def fields(kind: Any, above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every key of a configuration, those of structs inside included."""
    for field in kind.fields:
        if isinstance(field.type, inspect.StructType):
            yield from fields(field.type, (*above, field.encode_name))
        else:
            yield (*above, field.encode_name), field.type


def refused(config: msgspec.Struct, key: Key, value: object) -> str:
    data = part = msgspec.to_builtins(config)
    for step in key[:-1]:
        part = part[step]
    part[key[-1]] = value
    with pytest.raises(ConfigError) as caught:
        convert(data, type(config), source="c.yaml")
    return str(caught.value)


CASES = [(config, key, kind) for config in WHOLE for key, kind in fields(inspect.type_info(type(config)))]


def members(kind: Any) -> tuple[Any, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


@pytest.mark.parametrize(("config", "key", "kind"), CASES, ids=lambda value: "")
def test_a_value_of_another_kind_is_named(config: msgspec.Struct, key: Key, kind: Any) -> None:
    message = refused(config, key, {1: "?"} if not isinstance(kind, inspect.DictType) else ["?"])
    assert message.startswith(f"c.yaml: {'.'.join(key)}: expected ")
    assert not any(word in message for word in ("Invalid", "Expected", "`"))
    for member in members(kind):
        if isinstance(member, inspect.LiteralType):
            assert all(repr(value) in message for value in member.values)


@pytest.mark.parametrize(("config", "key", "kind"), CASES, ids=lambda value: "")
def test_every_whole_number_has_limits_that_are_named(config: msgspec.Struct, key: Key, kind: Any) -> None:
    for number in members(getattr(kind, "item_type", kind)):
        if isinstance(number, inspect.IntType):
            assert number.ge is not None
            assert number.le is not None
            listed = hasattr(kind, "item_type")
            for outside in (number.ge - 1, number.le + 1, float(10 * number.le), -(2**70), 2**70):
                message = refused(config, key, [outside] if listed else outside)
                place = ".".join(key) + ("[0]" if listed else "")
                assert message.startswith(f"c.yaml: {place}: expected a whole number {number_range(number)}")


@pytest.mark.parametrize(
    ("type_", "key"),
    [
        *[(HeavyConfig, ("model", name)) for name in ("token_dim", "query_hidden_dim", "expert_dim", "head_dims")],
        *[(DistillConfig, ("towers", side, "width")) for side in ("query", "pin")],
    ],
)
def test_no_width_reaches_what_no_machine_holds(type_: type, key: Key) -> None:
    kind = dict(fields(inspect.type_info(type_)))[key]
    assert getattr(kind, "item_type", kind).le < 100_000


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"querry": {}}, "model.groups: unknown key \"querry\", expected one of 'ad', 'pair', 'query'; did you mean"),
        ({1: {}}, "model.groups: expected every key to be text, got 1 (put it in quotes)"),
    ],
)
def test_a_key_that_is_none_of_the_known_ones_is_named(groups: dict, message: str) -> None:
    assert message in refused(WHOLE[0], ("model", "groups"), groups)


def test_all_that_may_stand_at_a_key_is_named() -> None:
    assert refused(WHOLE[0], ("compile",), "maybe").endswith("compile: expected true or false or 'auto', got \"maybe\"")
    expected = "loop.patience: expected a whole number from 1 to 1,000,000,000 or null, got 0"
    assert refused(WHOLE[0], ("loop", "patience"), 0).endswith(expected)
