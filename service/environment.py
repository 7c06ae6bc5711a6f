"""Settings from ``ADSIEVE_*`` variables: a wrong one is told in a line, an unknown one is told at all."""

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pydantic

from contracts.errors import ConfigError
from service.settings import Settings

PREFIX = "ADSIEVE_"
_NEXT_STEP = "correct the variable; docs/reference/settings.md lists every setting"

_SECRET = "_token"
"""How settings end whose value is not told."""

OTHERS = (
    *("REDIS_PASSWORD", "REDIS_CA", "REDIS_CERT", "REDIS_KEY"),
    *("REDIS_TIMEOUT_S", "REDIS_ANSWER_TIMEOUT_S", "REDIS_CONNECT_TIMEOUT_S"),
    *("KUAIRAND", "ECHO", "NAIVE", "COMPILED", "KERNELS"),
)
"""Variables, less their prefix, that are no settings of the service: of the Redis store, of tests and benchmarks."""


def load_settings(store: Path | str, local: Path | None = None) -> Settings:
    """Settings from ``ADSIEVE_*`` variables.

    Raises:
        ConfigError: Names the variable, what was expected, and the value.
    """
    _check_json(os.environ)
    try:
        return Settings(store=store, local=local)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field, *path = (str(part) for part in first["loc"])
        where = ": ".join((f"{PREFIX}{field.upper()}", *([".".join(path)] if path else [])))
        message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        message = message.replace("Input should be", "expected").partition(", unable to parse")[0]
        got = "" if field.endswith(_SECRET) else f", got {first['input']!r}"
        told = f"{where}: {message}{got}{_example(field)}"
        raise ConfigError(told, next_step=_NEXT_STEP) from error


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A line for each ``ADSIEVE_*`` variable that nothing reads, with the known name that is most like it."""
    names = (*(name.upper() for name in Settings.model_fields), *OTHERS)
    lines = []
    for variable in sorted(environment):
        name = variable.upper().removeprefix(PREFIX)
        if variable.upper().startswith(PREFIX) and name not in names:
            like = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
            hint = f", did you mean {PREFIX}{like[0]}?" if like else ""
            lines.append(f"{variable} is no setting and is ignored{hint}")
    return lines


def _check_json(environment: Mapping[str, str]) -> None:
    """Refuse text that is no JSON where a setting is an object.

    Raises:
        ConfigError: Names the variable and shows what one may look like.
    """
    names = {f"{PREFIX}{name.upper()}": name for name, field in Settings.model_fields.items() if field.examples}
    for variable, value in environment.items():
        field = names.get(variable.upper())
        if field is not None:
            try:
                json.loads(value)
            except ValueError as error:
                told = f"{variable}: is no JSON ({error}), got {value!r}{_example(field)}"
                raise ConfigError(told, next_step=_NEXT_STEP) from None


def _example(field: str) -> str:
    examples = Settings.model_fields[field].examples if field in Settings.model_fields else None
    return f", expected such as {examples[0]}" if examples else ""
