"""The page of configurations: keys, values and defaults from the structs' fields, meanings from their docstrings."""

import inspect as python_inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

HEAD = """# Every key of a configuration

Made from the structs by `python -m docs.write`. A file given by `--config` is YAML or JSON. A key that it leaves out
has its default, one without a default must be there, and a key or value that is not listed is refused. The
`config.json` of a run and of a bundle is such a file. Where there is no default, the value of a preset stands in
brackets. A single option of the command, such as `--epochs`, wins over the file.
"""


def page() -> str:
    """The whole page."""
    from adlogs.csv_column import Column
    from adlogs.csv_mapping import CsvMapping, Lookup, TableMapping
    from contracts.schema import Feature, FeatureSchema, Fitted, SequenceField, Table
    from distill.config import DistillConfig
    from distill.gate_limits import Limits
    from distill.presets import PRESETS as STUDENTS
    from heavy_ranker.config import HeavyConfig, ModelConfig
    from heavy_ranker.presets import PRESETS as TEACHERS
    from indexing.config import IndexConfig
    from indexing.release_limits import ReleaseLimits
    from modeling.loop_config import LoopConfig
    from towers.config import TowerConfig, TwoTowerConfig

    small, standard = TEACHERS["small"](), STUDENTS["standard"]()
    sections = (
        ("`adsieve heavy train`, `heavy scale`", "Preset `small`, `medium` or `iqiyi`.", "small", [
            ("", HeavyConfig, small), ("model.", ModelConfig, small.model)
        ]),
        ("`adsieve distill train`", "Preset `standard` or `shopping`.", "standard", [
            ("", DistillConfig, standard), ("towers.", TwoTowerConfig, standard.towers),
            ("towers.query., towers.pin.", TowerConfig, standard.towers.query),
        ]),
        ("`loop.` of both", "", "", [("loop.", LoopConfig, None)]),
        ("`adsieve distill publish --limits`", "A file of its own. A limit that is null is not judged.", "", [
            ("", Limits, None)
        ]),
        ("`adsieve index build`", "", "", [("", IndexConfig, None)]),
        ("`adsieve index publish --limits`", "A file of its own. A limit that is null is not judged.", "", [
            ("", ReleaseLimits, None)
        ]),
        ("`adsieve convert csv --mapping`", "A file of its own, which `--propose` writes.", "", [
            ("", CsvMapping, None), ("TABLE.", TableMapping, None), ("lookups.NAME.", Lookup, None),
            ("TABLE.columns.COLUMN.", Column, None),
        ]),
        ("Schema", "For `--schema`: `adsieve schema infer` proposes one, `adsieve schema fit` completes it.", "", [
            ("", FeatureSchema, None), ("tables.TABLE.", Table, None), ("features.FEATURE.", Feature, None),
            ("features.FEATURE.fields.FIELD.", SequenceField, None), ("features.FEATURE.fitted.", Fitted, None),
        ]),
    )  # fmt: skip
    parts = [HEAD]
    for title, words, preset, structs in sections:
        parts.append(f"## {title}\n" + (f"\n{words}\n" if words else ""))
        lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
        for prefix, struct, example in structs:
            lines += rows(prefix, struct, example, preset)
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def rows(prefix: str, struct: type[msgspec.Struct], example: msgspec.Struct | None, preset: str) -> Iterator[str]:
    """A line a field; ``prefix`` may be several, separated by commas. Structs inside have tables of their own."""
    meanings = documented(struct)
    described: Any = inspect.type_info(struct)
    for field in described.fields:
        if isinstance(field.type, inspect.StructType):
            continue
        keys = ", ".join(f"`{place.strip()}{field.encode_name}`" for place in prefix.split(","))
        default = _default(field, getattr(example, field.name, None), preset)
        yield f"| {keys} | {values(field.type)} | {default} | {meanings[field.name]} |"


def documented(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What the docstring says of each field, on one line.

    Raises:
        KeyError: It leaves one out.
    """
    text = python_inspect.cleandoc(struct.__doc__ or "")
    part = re.search(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", part[1] if part else "", re.MULTILINE)
    found = {name: _as_markdown(words) for name, words in entries}
    lacking = [name for name in struct.__struct_fields__ if name not in found]
    if lacking:
        raise KeyError(f"{struct.__name__}: the docstring leaves out {lacking}")
    return found


def _as_markdown(words: str) -> str:
    line = " ".join(words.split()).replace("``", "`").replace("|", "\\|")
    return re.sub(r"\bNone\b", "`null`", line)


def values(kind: Any) -> str:
    """What may stand at a key."""
    from contracts.config_errors import number_range

    match kind:
        case inspect.UnionType():
            return " or ".join(values(member) for member in kind.types)
        case inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values)
        case inspect.IntType():
            return f"whole number {number_range(kind)}".strip()
        case inspect.FloatType():
            return f"number {number_range(kind)}".strip()
        case inspect.BoolType():
            return "`true`, `false`"
        case inspect.NoneType():
            return "`null`"
        case inspect.StrType():
            return "text"
        case inspect.VarTupleType() | inspect.ListType():
            return f"list of: {values(kind.item_type)}"
        case inspect.StructType():
            return "keys as below"
        case inspect.DictType():
            return f"mapping from {values(kind.key_type)} to: {values(kind.value_type)}"
    raise TypeError(f"no words for {kind}")


def _default(field: Any, example: object, preset: str) -> str:
    if field.required:
        return f"(`{preset}`: `{_shown(example)}`)" if example is not None else "-"
    factory = field.default_factory
    return f"`{_shown(field.default if factory is msgspec.NODEFAULT else factory())}`"


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()
