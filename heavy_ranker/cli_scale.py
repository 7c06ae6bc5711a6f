"""``adsieve heavy scale``: what width, depth, embeddings and days are worth, and whether the gains add up."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from contracts.console import Json, print_json, print_table, table, utc_time
from heavy_ranker.cli_options import Log


def scale(
    log: Log,
    schema: Annotated[Path, typer.Option(help="Fitted feature schema, as `adsieve schema fit` writes it.")],
    out: Annotated[Path, typer.Option(help="Directory of the study. Called again, it trains the cells that miss.")],
    until: Annotated[
        datetime,
        typer.Option("--until", parser=utc_time, metavar="TIME", help="Where training ends and the test begins."),
    ],
    test_until: Annotated[
        datetime | None,
        typer.Option("--test-until", parser=utc_time, metavar="TIME", help="Where the test ends; the log's end."),
    ] = None,
    preset: Annotated[str, typer.Option(help="Configuration that the grid changes the sizes of.")] = "small",
    config: Annotated[Path | None, typer.Option(help="YAML file with it, instead of a preset.")] = None,
    widths: Annotated[str, typer.Option(help="Token widths; hidden widths keep their ratio to it.")] = "16,32",
    layers: Annotated[str, typer.Option(help="Backbone layers.")] = "1,2",
    embeddings: Annotated[str, typer.Option(help="Factors on the dims of all tables.")] = "1,2",
    days: Annotated[str, typer.Option(help="Days of the log before --until that are trained on.")] = "2,4",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each combination.")] = 2,
    json: Json = False,
) -> None:
    """Train a grid of sizes and days, test all on the same later days, and fit effects and interactions.

    As it stands the grid has 16 combinations with two seeds each: 32 trainings. --out gets report.json and report.svg.

    A step of width, embedding or days is a doubling. Where the interval of an interaction holds 0, the two gains may
    add up; where it does not, one makes the other worth more (negative) or less (positive).
    """
    from contracts.records import LogPaths
    from contracts.schema import load_schema
    from heavy_ranker.cli import choose_config
    from heavy_ranker.scale import run_study
    from heavy_ranker.scale_grid import grid
    from heavy_ranker.scale_report import write_report

    cells = grid(
        widths=_numbers("widths", widths, int),
        layers=_numbers("layers", layers, int),
        embeddings=_numbers("embeddings", embeddings, int),
        days=_numbers("days", days, float),
        seeds=seeds,
    )
    base = choose_config(preset, config, {})
    loaded = load_schema(schema, fitted=True)
    results = run_study(loaded, LogPaths.under(log), out, base, cells, until=until, test_until=test_until)
    report = write_report(results, out)
    if json:
        print_json(report)
    else:
        _print(report, out)


def _numbers(option: str, text: str, kind: type) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"expected numbers such as 1,2, got {text!r}", param_hint=f"--{option}") from None


def _print(report: dict[str, Any], out: Path) -> None:
    for task, effects in report["effects"].items():
        title = f"{task}: change of the test log loss, percent of its mean over {len(report['cells'])} runs"
        found = table("effect", title=title, numbers=("percent", "from", "to"))
        for row in effects:
            found.add_row(row["effect"], *(f"{row[name]:.2f}" for name in ("percent", "low", "high")))
        print_table(found)
        print(f"interactions of {task}: {report['interactions'][task]}")
    print(f"cells, report.json and the drawing report.svg are in {out}")
