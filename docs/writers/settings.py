"""The page of settings: every ``ADSIEVE_*`` variable of the service, from its fields and their docstring."""

import inspect
import json
import re
from pathlib import Path
from typing import Any, get_args

import annotated_types
from pydantic import BaseModel, SecretStr

from docs.writers.markdown import code, prose, table

HEAD = """# Settings of the service

Made from `service/settings.py` by `python -m docs.write`. Settings come from environment variables; some have an option
of `adsieve serve` too. One that is unknown, or has a value that is not allowed, stops the service with the name, the
value and what was expected. Mappings are JSON. What other commands read stands at the end.
"""


OTHER = {
    "ADSIEVE_COMPILED": "`0`: no kernels compiled by Numba; the same in NumPy, several times slower in places",
    "NUMBA_CACHE_DIR": "where compiled kernels are kept, in place of the user's cache",
    "ADSIEVE_KERNELS": "a directory of compiled kernels that an image brings along; it is copied into the user's "
    "cache where that has none",
    "XDG_CACHE_HOME": "the user's cache, `~/.cache` by default: `adsieve/` there holds compiled kernels, plans of "
    "TensorRT, the engines that builds chose, and mirrors of Redis stores",
    "TMPDIR": "where what is checked, spilled or counted lies meanwhile",
    "OMP_NUM_THREADS, OPENBLAS_NUM_THREADS": "threads of training and of NumPy in a process; "
    "`adsieve serve` sets them for its workers unless they are set",
    "NO_COLOR": "any value: no escape codes",
    "COLUMNS": "width of tables where there is no terminal",
    "MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME": "where trainings and evaluations are logged, as by `--mlflow`, and "
    "under which name",
    "MLFLOW_DISABLE_TELEMETRY": "`true` unless it is set",
    "ORT_DISABLE_TELEMETRY": "`1` unless it is set: ONNX Runtime would report to its vendor what it runs",
    "CXX": "compiler that long trainings compile their dense layers with, `g++` by default",
}
"""Of every command, beside the settings of the service."""


def page() -> str:
    """The whole page."""
    from service.settings import Settings, ShadowRelease, Split

    parts = [HEAD]
    for title, meanings in groups(Settings).items():
        rows = [_row(f"ADSIEVE_{name.upper()}", Settings.model_fields[name], words) for name, words in meanings.items()]
        parts.append(f"## {title}\n\n" + table(("variable", "value", "default", "meaning"), rows))
    for variable, model in (("ADSIEVE_AB", Split), ("ADSIEVE_SHADOW", ShadowRelease)):
        (meanings,) = groups(model).values()
        rows = [_row(name, model.model_fields[name], words) for name, words in meanings.items()]
        parts.append(f"## {variable}, of each scenario\n\n" + table(("key", "value", "default", "meaning"), rows))
    rows = [(code(name), words) for name, words in redis_variables().items()]
    parts.append(
        "## Connection to Redis\n\nOf every command that takes `--store URL`.\n\n"
        + table(("variable", "meaning"), rows)
    )
    rows = [(", ".join(map(code, names.split(", "))), words) for names, words in OTHER.items()]
    parts.append("## Other variables\n\nOf every command.\n\n" + table(("variable", "meaning"), rows))
    rows = [(code(name), words) for name, words in nightly_variables().items()]
    parts.append(
        "## deploy/nightly.sh\n\nOf the [nightly job](../how-to/deploy.md#the-night) alone.\n\n"
        + table(("variable", "meaning"), rows)
    )
    return "\n".join(parts)


def redis_variables() -> dict[str, str]:
    """The variables of a connection to Redis, which its module lists."""
    from indexing import redis_connect

    found: dict[str, str] = {}
    for names, words in re.findall(
        r"^    (ADSIEVE_REDIS_\S+(?:, \S+)*) {2,}(.+)$", redis_connect.__doc__ or "", re.MULTILINE
    ):
        first, *others = names.split(", ")
        found |= dict.fromkeys([first, *(first.rpartition("_")[0] + other for other in others)], words)
    return found


def nightly_variables() -> dict[str, str]:
    """The variables of the nightly job, which the top of its script lists."""
    script = Path(__file__).parents[2] / "deploy" / "nightly.sh"
    return dict(re.findall(r"^#   (\w+) {2,}(.+)$", script.read_text(), re.MULTILINE))


def groups(model: type[BaseModel]) -> dict[str, dict[str, str]]:
    """What the docstring says of each field, by its headings.

    Raises:
        KeyError: It leaves out a field, or tells of one that there is not.
    """
    text = inspect.cleandoc(model.__doc__ or "")
    found: dict[str, dict[str, str]] = {}
    for title, block in re.findall(r"^(\w[\w ]*):\n((?:    .*\n?|\n)+)", text, re.MULTILINE):
        entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", block, re.MULTILINE)
        found[title] = {name: prose(" ".join(words.split())) for name, words in entries}
    told = {name for entries in found.values() for name in entries}
    if odd := told ^ set(model.model_fields):
        raise KeyError(f"{model.__name__}: docstring and fields differ in {sorted(odd)}")
    return found


def _row(name: str, field: Any, words: str) -> tuple[str, str, str, str]:
    examples = "".join(f" Example: `{example}`." for example in field.examples or ())
    default = "required" if field.is_required() else code(_shown(field.default))
    return code(name), _value(field), default, words + examples


def _shown(value: object) -> str:
    return "not set" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _value(field: Any) -> str:
    kind, bounds = field.annotation, list(field.metadata)
    for inner in get_args(kind):
        bounds += getattr(inner, "__metadata__", ())
    return f"{_kind(kind)} {_range(bounds)}".strip()


def _kind(kind: Any) -> str:
    if getattr(kind, "__origin__", None) is dict:
        return "JSON object by scenario"
    if getattr(kind, "__metadata__", None) is not None:
        return _kind(kind.__origin__)
    if inner := get_args(kind):
        if all(isinstance(one, str) for one in inner):
            return ", ".join(code(one) for one in inner)
        return " or ".join(dict.fromkeys(_kind(one) for one in inner if one is not type(None)))
    names = {int: "whole number", float: "number", str: "text", Path: "path", SecretStr: "secret", bool: "true, false"}
    return names[kind]


def _range(bounds: list[Any]) -> str:
    words = []
    for bound in (deeper for one in bounds for deeper in (getattr(one, "metadata", None) or [one])):
        match bound:
            case annotated_types.Gt(gt):
                words.append(f"above {gt:,}")
            case annotated_types.Ge(ge):
                words.append(f"from {ge:,}")
            case annotated_types.Le(le):
                words.append(f"to {le:,}")
    return " ".join(words)
