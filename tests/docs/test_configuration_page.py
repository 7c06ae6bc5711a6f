"""docs/how-to/configuration.md says what the configurations say."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Literal

import msgspec
import pytest
from msgspec import inspect

import adsieve
from contracts.ranges import Few, Rate
from distill.config import DistillConfig
from heavy_ranker.config import HeavyConfig
from indexing.config import IndexConfig

DOCS = Path(adsieve.__file__).parent / "docs"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("configuration_page", DOCS / "configuration_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keys(kind: object, above: str = "") -> set[str]:
    found = set()
    for field in kind.fields:  # type: ignore[attr-defined]
        name = f"{above}{field.encode_name}"
        found |= keys(field.type, f"{name}.") if isinstance(field.type, inspect.StructType) else {name}
    return found


def test_the_page_is_up_to_date(writer: ModuleType) -> None:
    assert writer.PAGE.read_text() == writer.page(), "run python docs/configuration_page.py"


@pytest.mark.parametrize("config", [HeavyConfig, DistillConfig, IndexConfig])
def test_no_key_is_left_out(config: type) -> None:
    text = (DOCS / "how-to" / "configuration.md").read_text()
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


def test_a_line_says_key_values_default_and_meaning(writer: ModuleType) -> None:
    assert list(writer.rows("x., y.", Sizes, Sizes(layers=3), "tiny")) == [
        "| `x.layers`, `y.layers` | whole number from 1 to 256 | (`tiny`: `3`) | How many, in all; `few` \\| more. |",
        "| `x.rate`, `y.rate` | number above 0 and of at most 1,000 or `null` | `0.5` | Of each. |",
        '| `x.kind`, `y.kind` | `a`, `b` | `"a"` | What they are. |',
        "| `x.names`, `y.names` | mapping from text to: list of: text | `{}` | Of some. |",
    ]


def test_a_field_without_words_is_refused(writer: ModuleType) -> None:
    class Silent(msgspec.Struct):
        """Says nothing."""

        dim: int

    with pytest.raises(KeyError, match=r"Silent: the docstring leaves out \['dim'\]"):
        writer.documented(Silent)
