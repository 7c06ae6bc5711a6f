"""``adsieve distill``: train a student on the teacher's scores, judge it, seal it."""

import typer

from contracts.apart import ApartCommand
from distill.cli_evaluate import evaluate
from distill.cli_publish import publish
from distill.cli_skew import skew
from distill.cli_train import train

app = typer.Typer(
    name="distill",
    help="The lightweight stage: distil a two-tower from the heavy ranker's scores, judge it, seal it.",
    no_args_is_help=True,
)
app.command(cls=ApartCommand)(train)
app.command(cls=ApartCommand)(evaluate)
app.command(cls=ApartCommand)(publish)
app.command(cls=ApartCommand)(skew)
