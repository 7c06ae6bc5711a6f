"""The commands of ``adsieve index``."""

import typer

from contracts.apart import ApartCommand
from indexing.cli_build import build
from indexing.cli_export import export
from indexing.cli_release import list_releases, publish, rollback

app = typer.Typer(
    help="Build an index of pin embeddings; publish it together with the bundles that it was built for.",
    no_args_is_help=True,
)
app.command(cls=ApartCommand)(build)
app.command()(publish)
app.command("list")(list_releases)
app.command()(rollback)
app.command(cls=ApartCommand)(export)
