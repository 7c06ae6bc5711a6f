import json
import string
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from contracts.config import convert, dump_yaml, load_config, read_data
from contracts.errors import ConfigError


class Layer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["cross", "mlp"]
    dim: int = 8
    rates: tuple[float, ...] = ()
    inner: dict[str, "Layer"] | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    layers: dict[str, Layer]
    stack: list[Layer] = []
    name: str | None = None

    def __post_init__(self) -> None:
        if self.name == "two faults":
            raise ConfigError("name: first fault\nlayers: second fault")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_and_json_give_the_same_struct(tmp_path: Path) -> None:
    data = {"layers": {"a": {"kind": "mlp", "dim": 4, "rates": [1, 0.5]}}, "name": "größe"}
    from_json = load_config(write(tmp_path / "m.json", json.dumps(data)), Model)
    from_yaml = load_config(
        write(tmp_path / "m.yaml", "name: größe\nlayers: {a: {kind: mlp, dim: 4, rates: [1, .5]}}"), Model
    )
    assert from_json == from_yaml == Model(layers={"a": Layer(kind="mlp", dim=4, rates=(1.0, 0.5))}, name="größe")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"layers": {"a": {"kind": "mlp"}, "b": {"kind": "conv"}}},
            "layers.b.kind: expected one of 'cross', 'mlp', got \"conv\"",
        ),
        (
            {"layers": {"a": {"kind": "mlp", "dimm": 3}}},
            "layers.a.dimm: unknown field with value 3, expected one of 'kind', 'dim',",
        ),
        ({"layers": {"a": {"kind": "mlp", "dimm": 3}}}, "did you mean 'dim'?"),
        (
            {"layers": {"a": {"dim": 3}}},
            "layers.a.kind: required field is missing, expected one of 'cross', 'mlp', got {\"dim\": 3}",
        ),
        ({"layers": {"a": {"kind": "mlp", "dim": 1.5}}}, "layers.a.dim: expected a whole number, got 1.5"),
        ({"layers": {"a": {"kind": "mlp", "dim": True}}}, "layers.a.dim: expected a whole number, got true"),
        ({"layers": {"a": {"kind": "mlp", "dim": "4"}}}, 'layers.a.dim: expected a whole number, got "4"'),
        ({"layers": {"a": {"kind": "mlp", "rates": [0.1, None]}}}, "layers.a.rates[1]: expected a number, got null"),
        (
            {"layers": {}, "stack": [{"kind": "mlp"}, {"kind": 1}]},
            "stack[1].kind: expected one of 'cross', 'mlp', got 1",
        ),
        (
            {"layers": {"a": {"kind": "mlp", "inner": {"x": {"kind": "mlp"}, "y": {"kind": "z"}}}}},
            "layers.a.inner.y.kind: expected",
        ),
        ({"layers": {"a": 3}}, "layers.a: expected a mapping with kind, dim, rates, inner, got 3"),
        ({"layers": {1: {"kind": "mlp"}}}, "layers: expected every key to be text, got 1 (put it in quotes)"),
        ({}, "layers: required field is missing"),
        ([], "expected a mapping with layers, stack, name, got []"),
        (None, "expected a mapping with layers, stack, name, got null"),
        ({"layers": {}, "name": ["x" * 500]}, "..."),
    ],
)
def test_what_does_not_fit_is_named_with_path_value_and_expectation(data: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(data, Model, source="model.yaml")
    assert str(caught.value).startswith("model.yaml: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 250


def test_each_fault_of_a_cross_field_check_names_the_file() -> None:
    with pytest.raises(ConfigError) as caught:
        convert({"layers": {}, "name": "two faults"}, Model, source="model.yaml")
    assert str(caught.value) == "model.yaml: name: first fault\nmodel.yaml: layers: second fault"


def test_scalars_follow_yaml_1_2(tmp_path: Path) -> None:
    text = "a: NO\nb: 1e-3\nc: 12:30\nd: 010\ne: 0o10\nf: 2020-01-01\ng: true\nh: on\ni: ~\nj: .5\n"
    text += "k: 0x1F\nl: 1_000\nm: .inf"
    expected = {"a": "NO", "b": 0.001, "c": "12:30", "d": 10, "e": 8, "f": "2020-01-01", "g": True, "h": "on"}
    expected |= {"i": None, "j": 0.5, "k": 31, "l": "1_000", "m": float("inf")}
    assert read_data(write(tmp_path / "a.yaml", text)) == expected


def test_merge_keys_may_be_overridden(tmp_path: Path) -> None:
    text = "base: &base {x: 1, y: 2}\nown: {<<: *base, y: 3}"
    assert read_data(write(tmp_path / "a.yaml", text)) == {"base": {"x": 1, "y": 2}, "own": {"x": 1, "y": 3}}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a:\n  b: 1\n  b: 2", "key 'b' is written twice"),
        ("a.json", '{"a": {"b": 1, "b": 2}}', "key 'b' is written twice"),
        ("a.yaml", "a: [1", "not parseable: while parsing a flow sequence, line 1, column 4 "),
        ("a.yaml", "a: !!python/object/apply:os.system ['true']", "not parseable"),
        ("a.json", "{", "not parseable.*line 1 column 2"),
        ("a.json", '{"a": NaN}', "NaN is not JSON"),
    ],
)
def test_what_cannot_be_parsed_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_data(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_absent_and_undecodable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        load_config(tmp_path / "none.yaml", Model)
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.yaml: cannot be read as UTF-8"):
        load_config(tmp_path / "latin.yaml", Model)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, Model)


TRICKY = [
    "NO",
    "yes",
    "1e5",
    "1e-3",
    "010",
    "12:30",
    "2020-01-01",
    "",
    "null",
    "~",
    "0x1F",
    "0o7",
    "1_000",
    "=",
    "<<",
    ".5",
    "-",
    "a: b",
]
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(TRICKY),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(string.printable) | st.sampled_from(TRICKY), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(data=PLAIN)
def test_what_is_dumped_is_read_back_equal(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    path = tmp_path_factory.mktemp("yaml") / "data.yaml"
    dump_yaml(data, path)
    assert read_data(path) == data


@pytest.mark.parametrize("text", TRICKY)
def test_text_that_looks_like_something_else_is_quoted_for_any_reader(tmp_path: Path, text: str) -> None:
    dump_yaml({"value": text}, tmp_path / "a.yaml")
    assert yaml.safe_load((tmp_path / "a.yaml").read_text()) == {"value": text}


def test_a_dump_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    dump_yaml({"a": 1}, path)
    with pytest.raises(TypeError):
        dump_yaml({"a": object()}, path)
    with pytest.raises(UnicodeEncodeError):
        dump_yaml({"a": "\ud800"}, path)
    assert read_data(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.yaml"]
