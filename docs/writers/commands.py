"""The page of commands: every command with its arguments and options, as ``--help`` shows them."""

import re
from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from docs.writers.markdown import code, prose, table

TITLE = "# Commands\n"
HEAD = """Made from the commands themselves by `python -m docs.write`; `adsieve COMMAND --help` says the same.

Exit codes: 0 done, 1 the work failed, 2 wrong usage or bad input. Results go to standard output, progress and messages
to standard error.
"""


def page() -> str:
    """The whole page."""
    import adsieve

    root = typer.main.get_command(adsieve.app)
    parts = [TITLE, HEAD, *(_section(words, command) for words, command in commands(root, ("adsieve",)))]
    return "\n".join(parts)


def commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that call it, in the order of ``--help``."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
        return
    for name, below in inner.items():
        yield from commands(below, (*words, name))


def _section(words: tuple[str, ...], command: Any) -> str:
    usage = [*words, *(_argument(one) for one in command.params if one.param_type_name == "argument"), "[OPTIONS]"]
    parts = [f"## {' '.join(words)}\n", f"```text\n{' '.join(usage)}\n```\n", _help(command.help or "")]
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows:
        parts.append(table(("option", "value", "default", "meaning"), rows))
    return "\n".join(parts)


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _help(text: str) -> str:
    """The help of a command; its indented blocks are shown as they stand."""
    paragraphs = re.split(r"\n\s*\n", prose(text.replace("\b\n", "").replace("\f", "")))
    shown = [f"```text\n{one}\n```" if one.startswith("  ") else " ".join(one.split()) for one in paragraphs if one]
    return "\n\n".join(shown) + "\n"


def _row(parameter: Any) -> tuple[str, str, str, str]:
    is_argument = parameter.param_type_name == "argument"
    names = [_argument(parameter)] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    return ", ".join(code(name) for name in names), _value(parameter), _default(parameter), prose(parameter.help or "")


def _value(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return "flag"
    several = " (several)" if getattr(parameter, "multiple", False) or parameter.nargs == -1 else ""
    shown = code(parameter.metavar) if parameter.metavar else _kind(parameter.type_descriptor.annotation)
    return shown + several


def _kind(kind: Any) -> str:
    inner = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(code(one.value) for one in kind)
    if get_origin(kind) is Literal:
        return ", ".join(code(str(one)) for one in inner)
    if inner:
        return " or ".join(dict.fromkeys(_kind(one) for one in inner if one is not type(None)))
    names = {int: "whole number", float: "number", str: "text", Path: "path", datetime: "date or time"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if callable(value) or value in (None, (), []) or (value is False and getattr(parameter, "is_flag", False)):
        return ""
    return code(str(getattr(value, "value", value)))
