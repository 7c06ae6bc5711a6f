"""What ``adsieve heavy train`` does beyond one run from fresh weights: warm starts and teacher series."""

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from contracts.console import print_json, print_table, table
from heavy_ranker.cli_metrics import number
from modeling.mlflow_run import Outcome, tracking

if TYPE_CHECKING:
    from heavy_ranker.config import HeavyConfig
    from heavy_ranker.series import SeriesManifest
    from heavy_ranker.warmstart import WarmSource

WarmStartOption = Annotated[
    Path | None,
    typer.Option(
        "--warm-start",
        help="Run, bundle or daily series to begin from. Its configuration counts, for one epoch, where no option says "
        "otherwise; features that are new or changed start anew.",
    ),
]
SeriesOption = Annotated[
    str | None,
    typer.Option(
        metavar="daily|folds:K",
        help="Train a teacher series into --out instead: day by day, each model on the days before the one it scores, "
        "or K models out of fold.",
    ),
]
FirstDays = Annotated[int, typer.Option(min=1, help="Of --series daily: days of the first model, which get no scores.")]
FoldBy = Annotated[str, typer.Option(help="Of --series folds:K: column of requests/ whose hash is the fold.")]


@dataclass(frozen=True)
class SeriesChoice:
    """What ``--series`` says.

    Args:
        kind: Progressively by day, or out of fold.
        folds: K; 0 for days.
        first_days: Days that the first model of a daily series learns from.
        fold_by: Column whose hash is the fold.
    """

    kind: Literal["daily", "folds"]
    folds: int
    first_days: int
    fold_by: str

    @classmethod
    def parse(cls, text: str, *, first_days: int, fold_by: str) -> "SeriesChoice":
        """Read ``daily`` or ``folds:K``.

        Raises:
            typer.BadParameter: It is neither.

        Example:
            >>> SeriesChoice.parse("folds:4", first_days=1, fold_by="user_id")
            SeriesChoice(kind='folds', folds=4, first_days=1, fold_by='user_id')
        """
        kind, _, folds = text.partition(":")
        if text == "daily":
            return cls("daily", 0, first_days, fold_by)
        if kind == "folds" and folds.isdecimal() and int(folds) >= 2:
            return cls("folds", int(folds), first_days, fold_by)
        raise typer.BadParameter(f"expected daily or folds:K with K of 2 or more, got {text!r}", param_hint="--series")


def warm_config(source: "WarmSource") -> "HeavyConfig":
    """The source's configuration for a short training that continues it; its token groups are continued later."""
    from msgspec.structs import replace

    config = source.config
    return replace(config, model=replace(config.model, groups={}), loop=replace(config.loop, epochs=1))


def run_series(
    series: SeriesChoice,
    log: Path,
    schema: Path,
    out: Path,
    config: "HeavyConfig",
    start: datetime | None,
    end: datetime | None,
    *,
    mlflow: str | None,
    json: bool,
) -> None:
    """Train a series and print its members.

    Raises:
        typer.BadParameter: It was called under torchrun.
    """
    from contracts.records import LogPaths
    from contracts.schema import load_schema
    from heavy_ranker.series_train import train_daily, train_folds

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise typer.BadParameter("a series is trained by one process, got several of torchrun", param_hint="--series")
    fitted, paths = load_schema(schema, fitted=True), LogPaths.under(log)
    with tracking(mlflow, f"heavy train --series {series.kind}", place=out, params=config) as track:
        if series.kind == "daily":
            manifest = train_daily(fitted, paths, out, config, first_days=series.first_days, start=start, end=end)
        else:
            manifest = train_folds(
                fitted, paths, out, config, folds=series.folds, fold_by=series.fold_by, start=start, end=end
            )
        track(Outcome(history=[one.metrics for one in manifest.members], tags={"series": manifest.version}, logs=[log]))
    if json:
        print_json(manifest)
    else:
        _print_members(manifest, out)


def _print_members(manifest: "SeriesManifest", out: Path) -> None:
    tasks = next((member.metrics for member in manifest.members if member.metrics), {})
    found = table("model", numbers=("learned", "judged on", *(f"{task} AUC" for task in tasks)))
    for member in manifest.members:
        judged = f"{next(iter(member.metrics.values()))['rows']:,}" if member.metrics else "-"
        values = (number(member.metrics[task]["auc"] if member.metrics else None, 4) for task in tasks)
        found.add_row(member.name, f"{member.impressions:,}", judged, *values)
    print_table(found)
    print(f"{manifest.version}: {len(manifest.members)} models in {out}, each judged on what it may score")
