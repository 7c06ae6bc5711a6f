"""docs/reference/configuration.md says what the configurations say."""

from typing import Literal

import msgspec
import pytest
from msgspec import inspect

from contracts.ranges import Few, Rate
from distill.config import DistillConfig
from distill.gate_limits import Limits
from docs.writers import configuration
from heavy_ranker.config import HeavyConfig
from indexing.config import IndexConfig
from indexing.release_limits import ReleaseLimits


def keys(kind: object, above: str = "") -> set[str]:
    found = set()
    for field in kind.fields:  # type: ignore[attr-defined]
        name = f"{above}{field.encode_name}"
        found |= keys(field.type, f"{name}.") if isinstance(field.type, inspect.StructType) else {name}
    return found


@pytest.mark.parametrize("config", [HeavyConfig, DistillConfig, IndexConfig, Limits, ReleaseLimits])
def test_no_key_is_left_out(config: type) -> None:
    text = configuration.page()
    assert not {key for key in keys(inspect.type_info(config)) if f"`{key}`" not in text}


class Sizes(msgspec.Struct, kw_only=True):
    """Of a model.

    Args:
        layers: How many,
            in all; ``few`` | more.
        rate: Of each.
        kind: What they are.
        names: Of some.
        inner: Not shown.
    """

    layers: Few
    rate: Rate | None = 0.5
    kind: Literal["a", "b"] = "a"
    names: dict[str, tuple[str, ...]] = {}
    inner: IndexConfig = IndexConfig()


def test_a_line_says_key_values_default_and_meaning() -> None:
    assert list(configuration.rows("x., y.", Sizes, Sizes(layers=3), "tiny")) == [
        "| `x.layers`, `y.layers` | whole number from 1 to 256 | (`tiny`: `3`) | How many, in all; `few` \\| more. |",
        "| `x.rate`, `y.rate` | number above 0 and of at most 1,000 or `null` | `0.5` | Of each. |",
        '| `x.kind`, `y.kind` | `a`, `b` | `"a"` | What they are. |',
        "| `x.names`, `y.names` | mapping from text to: list of: text | `{}` | Of some. |",
    ]


def test_a_field_without_words_is_refused() -> None:
    class Silent(msgspec.Struct):
        """Says nothing."""

        dim: int

    with pytest.raises(KeyError, match=r"Silent: the docstring leaves out \['dim'\]"):
        configuration.documented(Silent)
