"""How the front door looks on a terminal: ``--quiet``, shell completion, and errors that end with what to do next."""

import errno
import os
import re
import sys
from collections.abc import Iterator
from functools import wraps
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from contracts.console import print_error, quietly
from contracts.errors import (
    AdsieveError,
    ArtifactError,
    ConfigError,
    InputError,
    LogError,
    MismatchError,
    RequestError,
    WrongArtifactError,
)

PROGRAM = "adsieve"
INTERRUPTED = 130
# A name that a command gives to what it writes before it is whole: the target's behind a dot, and a mark of its own.
ASIDE = re.compile(r"\.(?P<name>.+?)(?:(?:\.[0-9a-z_]{8})?\.(?:partial|tmp|work)|\.[0-9a-z_]{8})")
WRONG_PATH = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EACCES, errno.EPERM, errno.EROFS}
    | {errno.ENAMETOOLONG, errno.ELOOP}
)
"""What the system says of a path that cannot be used as asked; the rest, such as a full disk, is work that failed."""

TRAINING_LIBRARIES = frozenset({"torch", "torchrec", "fbgemm_gpu", "onnx", "onnxscript", "jinja2"})
INSTALL_TRAINING = (
    "pip install -r requirements/train.txt, then pip install --no-deps -r requirements/torchrec.txt; "
    "`adsieve doctor` tells what fits together"
)
LESS_MEMORY = "choose smaller batches (--batch-size, --pairs-per-batch), a smaller model, or a machine with more"
REPEAT = "make room or mend what the line above names, then run the same command again: what is whole is kept"

NEXT_STEPS: dict[type[AdsieveError], str] = {
    RequestError: "correct the request; GET /openapi.json of a server describes every field",
    LogError: "mend what the line above names, the log or the option; `adsieve validate LOGS --schema SCHEMA` names "
    "every fault of a log",
    ConfigError: "correct the file or option; docs/reference/configuration.md lists every key, "
    "`{command} --help` every option",
    InputError: "`{command} --help` tells what it takes",
    WrongArtifactError: "`{command} --help` tells what each path leads to",
    MismatchError: "give it bundles and an index that were made for each other: `adsieve index build --help`",
    ArtifactError: "make or copy it again: every file is checked against its manifest before it is used",
    AdsieveError: "mend what the line above names and run the same command again; `adsieve doctor` tells what this "
    "machine can do",
}
"""What to do next, by kind; of several kinds that an error is, the first counts."""

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but errors and, with --json, the result.", is_flag=True)
]
Shell = Literal["bash", "zsh", "fish", "powershell", "pwsh"]


class FrontDoor(TyperGroup):
    """The root of a command line; every command below it takes ``--quiet``, unless it has its own."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in _commands(self):
            if not any("--quiet" in parameter.opts for parameter in command.params):
                command.params.append(_quiet_option())
                command.callback = _with_quiet(command)
        if os.environ.get("NO_COLOR"):
            for command in (self, *_commands(self, groups=True)):
                command.rich_markup_mode = None


def run(app: typer.Typer) -> None:
    """Run the command line and end the process; known errors become two lines on standard error and an exit code."""
    if f"_{PROGRAM.upper()}_COMPLETE" in os.environ:
        typer.completion.completion_init()
    command = typer.main.get_command(app)
    try:
        code = command(prog_name=PROGRAM, standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        told = explained(error, _command_of(command, sys.argv[1:]))
        if told is None:
            raise
        message, next_step, code = told
        if message:
            print_error(f"error: {message}\nnext: {next_step}")
    if code == INTERRUPTED:
        print_error("interrupted\nnext: run the same command again; nothing half-written is left to be taken for whole")
    sys.exit(code if isinstance(code, int) else 0)


def explained(error: Exception, command: str) -> tuple[str, str, int] | None:
    """What an error says, what to do next, and the exit code; None for a bug.

    Args:
        error: As it left a command.
        command: The command in words, such as ``adsieve index build``.

    Example:
        >>> explained(InputError("--keep 0: expected 1 or more"), "adsieve index prune")
        ('--keep 0: expected 1 or more', '`adsieve index prune --help` tells what it takes', 2)
    """
    match error:
        case AdsieveError():
            of_kind = next(text for kind, text in NEXT_STEPS.items() if isinstance(error, kind))
            step = getattr(error, "next_step", None) or of_kind.format(command=command)
            return str(error), step, error.exit_code
        case TyperException():
            return _usage(error, command)
        case OSError():
            wrong_path = error.errno in WRONG_PATH
            step = f"choose another path; `{command} --help` tells what it takes" if wrong_path else REPEAT
            return _system_fault(error), step, InputError.exit_code if wrong_path else AdsieveError.exit_code
        case ModuleNotFoundError() if error.name in TRAINING_LIBRARIES:
            message = f"this command needs {error.name}: serving does without, training does not"
            return message, INSTALL_TRAINING, AdsieveError.exit_code
        case _ if _is_out_of_memory(error):
            return "out of memory", LESS_MEMORY, AdsieveError.exit_code
    return None


def show_completion(shell: Shell | None) -> None:
    """Print the script that completes commands, options and names in a shell, and stop."""
    if shell is not None:
        variable = f"_{PROGRAM.upper()}_COMPLETE"
        print(typer.completion.get_completion_script(prog_name=PROGRAM, complete_var=variable, shell=shell))
        raise typer.Exit


def _usage(error: TyperException, command: str) -> tuple[str, str, int]:
    """Options and arguments that do not fit; a command that was called without any prints its help."""
    context = getattr(error, "ctx", None)
    named = command if context is None else context.command_path
    if type(error).__name__ == "NoArgsIsHelpError":  # has printed the help
        return "", "", error.exit_code
    return _refused(error), f"`{named} --help` tells what it takes", error.exit_code


def _refused(error: TyperException) -> str:
    """What is wrong; of a value that its option does not take, with the value and what was expected."""
    message = " ".join(error.format_message().split())
    faults = getattr(error.__cause__, "errors", None)
    if faults is None:
        return message
    message = message.replace("Value error, ", "").replace("Input should be", "expected").partition(", unable to")[0]
    value = repr(faults()[0]["input"])
    return message if value in message else f"{message}, got {value}"


def _commands(group: Any, *, groups: bool = False) -> Iterator[Any]:
    """All commands below a group; with ``groups`` the groups too."""
    for command in group.commands.values():
        is_group = hasattr(command, "commands")
        if is_group:
            yield from _commands(command, groups=groups)
        if groups or not is_group:
            yield command


def _quiet_option() -> Any:
    """The parameter that Typer makes of ``Quiet``."""
    template = typer.Typer(add_completion=False)

    @template.command()
    def command(quiet: Quiet = False) -> None: ...

    (option,) = typer.main.get_command(template).params
    return option


def _with_quiet(command: Any) -> Any:
    work, names = command.callback, {option: one.name for one in command.params for option in one.opts}
    json = names.get("--json", "")

    @wraps(work)
    def run_quietly(*, quiet: bool, **given: Any) -> Any:
        if not quiet:
            return work(**given)
        with quietly(with_result=bool(given.get(json))):
            return work(**given)

    return run_quietly


def _command_of(command: Any, words: list[str]) -> str:
    """The command that words call, such as ``adsieve index build``."""
    named = [PROGRAM]
    for word in words:
        if word in getattr(command, "commands", {}):
            command = command.commands[word]
            named.append(word)
    return " ".join(named)


def _system_fault(error: OSError) -> str:
    """The path and what the system says of it; of two paths, the one that was to be written.

    Of a file that a command makes for a while beside what it writes, it is what it writes that people know.
    """
    path = error.filename2 or error.filename
    if isinstance(path, str) and (aside := ASIDE.fullmatch(os.path.basename(path))):
        path = os.path.join(os.path.dirname(path), aside["name"])
    return f"{path}: {(error.strerror or str(error)).lower()}" if path else str(error)


def _is_out_of_memory(error: BaseException) -> bool:
    """Of NumPy and Arrow a MemoryError; of torch, which is not imported here, a RuntimeError that says it."""
    text = str(error)
    is_allocation = isinstance(error, RuntimeError) and "memory" in text and "alloc" in text.lower()
    return isinstance(error, MemoryError) or is_allocation
