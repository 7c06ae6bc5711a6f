"""The front door: one command line over all packages.

Each package brings its commands in its own ``cli.py``; those files import only Typer, and load the rest when they run.
"""

import errno
import importlib.metadata
import sys
from pathlib import Path
from typing import Annotated

import typer

import adlogs.cli
import distill.cli
import heavy_ranker.cli
import indexing.cli
import service.cli
from contracts.apart import ApartCommand
from contracts.errors import AdsieveError, InputError

INTERRUPTED = 130
WRONG_PATH = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EACCES, errno.EPERM, errno.EROFS}
    | {errno.ENAMETOOLONG, errno.ELOOP}
)
"""What the system says of a path that cannot be used as asked; the rest, such as a full disk, is work that failed."""

TRAINING_LIBRARIES = frozenset({"torch", "torchrec", "fbgemm_gpu", "onnx", "onnxscript", "jinja2"})
INSTALL_TRAINING = (
    "serving does without, training does not: pip install -r requirements/train.txt, "
    "then pip install --no-deps -r requirements/torchrec.txt"
)

OUT_OF_MEMORY = (
    "out of memory: choose smaller batches (--batch-size, --pairs-per-batch), a smaller model, or a machine with more"
)

app = typer.Typer(
    name="adsieve",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(adlogs.cli.simulate)
app.add_typer(adlogs.cli.convert, name="convert")
app.command()(adlogs.cli.validate)
app.add_typer(adlogs.cli.schema, name="schema")
app.add_typer(heavy_ranker.cli.app, name="heavy")
app.add_typer(distill.cli.app, name="distill")
app.add_typer(indexing.cli.app, name="index")
app.command()(service.cli.serve)
app.command()(service.cli.rank)


@app.command(cls=ApartCommand)
def demo(
    out: Annotated[
        Path, typer.Option(help="Directory for everything that is made; an earlier demo there is replaced.")
    ] = Path("out/demo"),
    preset: Annotated[
        str, typer.Option(help="Simulated world: demo, or tiny for a quick look that proves little.")
    ] = "demo",
    kuairand: Annotated[
        Path | None, typer.Option(help="Folder of the KuaiRand-Pure log to run on instead of a simulated one.")
    ] = None,
) -> None:
    """The whole job at small size: a log, a teacher, students, indexes, a server, ranked ads and a report.

    Every step is a command of its own and is printed before it runs, so that it can be repeated or changed.
    """
    from adsieve_demo import run_demo

    run_demo(lambda command: app(command, standalone_mode=False), out=out, preset=preset, kuairand=kuairand)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"adsieve {importlib.metadata.version('adsieve')}")
        raise typer.Exit


def _serving_bundle(store: str, scenario: str) -> Path | None:
    """The two-tower bundle that serves a scenario, for commands whose own package knows no store."""
    from indexing.cli_options import opened_store

    releases = opened_store(store, None)
    current = releases.current(scenario)
    return None if current is None else releases.paths(current).two_tower


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """The lightweight ranking stage of an ads pipeline: train, distil, index and serve it."""
    context.obj = _serving_bundle


def main() -> None:
    """Run the command line; known errors become one line on standard error and their exit code."""
    try:
        app(prog_name="adsieve")
    except AdsieveError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"error: {_system_fault(error)}", file=sys.stderr)
        sys.exit(InputError.exit_code if error.errno in WRONG_PATH else AdsieveError.exit_code)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        print(f"error: {OUT_OF_MEMORY}", file=sys.stderr)
        sys.exit(AdsieveError.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in TRAINING_LIBRARIES:
            raise
        print(f"error: this command needs {error.name}; {INSTALL_TRAINING}", file=sys.stderr)
        sys.exit(AdsieveError.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _system_fault(error: OSError) -> str:
    """The path and what the system says of it; of two paths, the one that was to be written."""
    path = error.filename2 or error.filename
    return f"{path}: {(error.strerror or str(error)).lower()}" if path else str(error)


def _is_out_of_memory(error: BaseException) -> bool:
    """Of NumPy and Arrow a MemoryError; of torch, which is not imported here, a RuntimeError that says it."""
    return isinstance(error, MemoryError) or ("memory" in str(error) and "alloc" in str(error).lower())


if __name__ == "__main__":
    main()
