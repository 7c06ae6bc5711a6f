"""The commands of ``adsieve index``."""

import typer

from contracts.apart import ApartCommand
from indexing.cli_build import build
from indexing.cli_export import export
from indexing.cli_list import list_releases
from indexing.cli_reencode import reencode
from indexing.cli_release import pin, prune, publish, rollback, unpin
from indexing.cli_update import update

app = typer.Typer(
    help="Build an index of pin embeddings; publish it together with the bundles that it was built for.",
    no_args_is_help=True,
)
app.command(cls=ApartCommand)(build)
app.command(cls=ApartCommand)(reencode)
app.command()(publish)
app.command("list")(list_releases)
app.command()(rollback)
app.command()(pin)
app.command()(unpin)
app.command()(prune)
app.command(cls=ApartCommand)(export)
app.command()(update)
