"""The front door: one command line over all packages, above all layers.

Each package brings its commands in its own ``cli.py``; those files import only Typer, and load what they need when they run.
"""

import sys

import typer

import adlogs.cli
import distill.cli
import heavy_ranker.cli
import indexing.cli
import service.cli
from contracts.errors import AdsieveError

INTERRUPTED = 130

app = typer.Typer(
    name="adsieve",
    help="The lightweight ranking stage of an ads pipeline: train, distil, index and serve it.",
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


def main() -> None:
    """Run the command line; known errors become one line on standard error and their exit code."""
    try:
        app()
    except AdsieveError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
