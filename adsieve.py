"""The front door: one command line over all packages.

Each package brings its commands in its own ``cli.py``; those files import only Typer, and load the rest when they run.
"""

import importlib.metadata
from pathlib import Path
from typing import Annotated

import typer

import adlogs.cli
import adlogs.cli_init
import distill.cli
import heavy_ranker.cli
import indexing.cli
import service.cli
import service.cli_doctor
from adsieve_terminal import FrontDoor, Shell, run, show_completion
from contracts.apart import ApartCommand
from contracts.console import Json


class Serving:
    """What serves in a store, for commands whose own package knows no store."""

    def __call__(self, store: str, scenario: str) -> Path | None:
        """The two-tower bundle that serves a scenario."""
        from indexing.cli_options import opened_store

        releases = opened_store(store, None)
        current = releases.current(scenario)
        return None if current is None else releases.paths(current).two_tower

    def scenarios(self, store: str | None) -> list[str]:
        """For a shell, the scenarios that have a release."""
        from indexing.cli_options import known_scenarios

        return known_scenarios(store)


app = typer.Typer(
    name="adsieve",
    cls=FrontDoor,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"obj": Serving(), "help_option_names": ["-h", "--help"]},
)
app.command()(adlogs.cli.simulate)
app.command()(adlogs.cli_init.init)
app.add_typer(adlogs.cli.convert, name="convert")
app.command()(adlogs.cli.validate)
app.add_typer(adlogs.cli.schema, name="schema")
app.add_typer(heavy_ranker.cli.app, name="heavy")
app.add_typer(distill.cli.app, name="distill")
app.add_typer(indexing.cli.app, name="index")
app.command()(service.cli.serve)
app.command()(service.cli.rank)
app.command()(service.cli_doctor.doctor)


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
    json: Json = False,
) -> None:
    """The whole job at small size: a log, a teacher, students, indexes, a server, ranked ads and a report.

    Every step is a command of its own and is printed before it runs, so that it can be repeated or changed.
    """
    from adsieve_demo import run_demo

    run_demo(lambda command: app(command, standalone_mode=False), out=out, preset=preset, kuairand=kuairand, json=json)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"adsieve {importlib.metadata.version('adsieve')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    completion: Annotated[
        Shell | None,
        typer.Option(
            "--show-completion",
            callback=show_completion,
            is_eager=True,
            help="Print the script that completes commands, options and names in this shell, and stop. In bash: "
            'eval "$(adsieve --show-completion bash)"',
        ),
    ] = None,
) -> None:
    """The lightweight ranking stage of an ads pipeline: train, distil, index and serve it."""


def main() -> None:
    """Run the command line; known errors become two lines on standard error, the last with what to do next."""
    run(app)


if __name__ == "__main__":
    main()
