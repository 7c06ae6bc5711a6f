"""``adsieve distill``: train a student on the teacher's scores, judge it, seal it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contracts.console import From, Json, Until, print_json

if TYPE_CHECKING:
    from distill.config import DistillConfig
    from distill.evaluate import Evaluation

app = typer.Typer(
    name="distill",
    help="The lightweight stage: distil a two-tower from the heavy ranker's scores, judge it, seal it.",
    no_args_is_help=True,
)


Logs = Annotated[Path, typer.Option("--logs", help="Log directory with requests/ and ads/.")]
Candidates = Annotated[
    Path | None,
    typer.Option(help="Scored candidates, as `adsieve heavy score` writes them; by default candidates/ of the log."),
]
Threads = Annotated[int, typer.Option(min=1, help="Threads of the exported graphs.")]


@app.command()
def train(
    logs: Logs,
    schema: Annotated[Path, typer.Option(help="Fitted feature schema without pair features.")],
    scenario: Annotated[str, typer.Option(help="Whose requests to learn from; one student serves one scenario.")],
    out: Annotated[
        Path, typer.Option(help="Run directory. Called again, an interrupted run goes on from its checkpoint.")
    ],
    candidates: Candidates = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Sizes and rates to start from: standard or shopping; the scenario's own, else standard."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with a whole configuration, instead of a preset.")
    ] = None,
    start: From = None,
    end: Until = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the pairs.")] = None,
    pairs_per_batch: Annotated[
        int | None, typer.Option(min=1, help="Pairs a batch, whole requests of one day.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak rate of the towers.")] = None,
    table_learning_rate: Annotated[float | None, typer.Option(help="Peak rate of the embedding tables.")] = None,
    validation_share: Annotated[
        float | None, typer.Option(help="Last share of the pairs by time that decides when to stop; 0 trains on all.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="Validations without a better KL after which training stops.")
    ] = None,
    head_weight: Annotated[
        list[str] | None, typer.Option(metavar="TASK=WEIGHT", help="Weight of one head's KL; repeat it for others.")
    ] = None,
    stage_weight: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE=WEIGHT", help="Factor for pairs that got as far as eligible, candidate or winner."),
    ] = None,
    propensity_weights: Annotated[
        bool | None, typer.Option(help="Weigh randomly explored ads by their inverse propensity.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of initial weights and order.")] = None,
    json: Json = False,
) -> None:
    """Distil a student for one scenario: the lowest KL to the teacher's scores on the latest requests wins.

    Several processes train one student with `torchrun --nproc-per-node N -m -- adsieve distill train ...`.
    """
    from contracts.records import LogPaths
    from contracts.schema import load_schema
    from distill.train import train_student
    from modeling.distributed import join_ranks

    changes = {
        "epochs": epochs,
        "pairs_per_batch": pairs_per_batch,
        "learning_rate": learning_rate,
        "table_learning_rate": table_learning_rate,
        "validation_share": validation_share,
        "patience": patience,
        "head_weights": parse_weights(head_weight, "--head-weight") if head_weight else None,
        "stage_weights": parse_weights(stage_weight, "--stage-weight") if stage_weight else None,
        "propensity_weights": propensity_weights,
        "seed": seed,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    with join_ranks() as ranks:
        chosen, log = choose_config(preset, config, scenario, given), LogPaths.under(logs, candidates)
        fitted = load_schema(schema, fitted=True)
        run = train_student(fitted, log, out, chosen, scenario=scenario, start=start, end=end, ranks=ranks)
    if not ranks.is_main:
        return
    if json:
        print_json({"run": str(out), "summary": run.summary})
        return
    summary = run.summary
    print(f"distilled {scenario} from {summary.teacher_version} on {summary.pairs:,} pairs, run in {out}")
    for task, kl in summary.metrics.get("validation_kl", {}).items():
        print(f"  validation KL, {task}: {kl:.4g}")


@app.command()
def evaluate(
    logs: Logs,
    bundle: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Sealed two-tower bundle; its own graphs are judged.")
    ],
    out: Annotated[Path, typer.Option(help="Directory for report.html, report.json and slices.parquet.")],
    candidates: Candidates = None,
    start: From = None,
    end: Until = None,
    slices: Annotated[
        list[str] | None,
        typer.Option("--slice", metavar="COLUMN", help="Also cut by this column of the log; repeat it for others."),
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Heavy ads that should survive.")] = 10,
    pool_size: Annotated[
        int, typer.Option(min=1, help="Least number of scored eligible ads of a request whose recall is measured.")
    ] = 1_000,
    threads: Threads = 2,
    json: Json = False,
) -> None:
    """Report a student against the teacher: per slice, and what of the heavy ranker's best survives."""
    from contracts.bundle import open_bundle
    from contracts.records import LogPaths
    from distill.evaluate import evaluate_bundle
    from distill.report import HTML_FILE, write_report

    evaluation = evaluate_bundle(
        open_bundle(bundle, kind="two_tower"),
        LogPaths.under(logs, candidates),
        start=start,
        end=end,
        columns=slices or (),
        top_k=top_k,
        pool_size=pool_size,
        threads=threads,
    )
    write_report(evaluation, out)
    if json:
        print_json(evaluation)
        return
    _print_headline(evaluation)
    print(f"report: {out / HTML_FILE}")


@app.command()
def publish(
    logs: Logs,
    run: Annotated[Path, typer.Option(help="Finished run directory.")],
    out: Annotated[Path, typer.Option(help="Bundle to create; it appears whole or not at all.")],
    candidates: Candidates = None,
    start: From = None,
    end: Until = None,
    threads: Threads = 2,
    json: Json = False,
) -> None:
    """Seal a bundle: graphs checked against the model, weights, saved requests, feature profile and slices."""
    from contracts.records import LogPaths
    from distill.publish import publish_student
    from distill.run import load_run

    log = LogPaths.under(logs, candidates)
    bundle = publish_student(load_run(run), log, out, start=start, end=end, threads=threads)
    if json:
        print_json({"bundle": str(out), "version": bundle.manifest.version})
    else:
        print(f"sealed {bundle.manifest.version} at {out}")


def choose_config(preset: str | None, path: Path | None, scenario: str, changes: dict[str, Any]) -> "DistillConfig":
    """The configuration of a file, or of a preset, with single values changed.

    Args:
        preset: Name of a preset; None takes the one that is named like the scenario, else ``standard``.
        path: YAML file, instead of a preset.
        scenario: To be distilled for.
        changes: By field name, of the training loop or of the configuration itself.

    Raises:
        ConfigError: There is no such preset, or the file or a change does not fit.
    """
    from msgspec import to_builtins

    from contracts.config import load_config, with_changes
    from contracts.errors import ConfigError
    from distill.config import DistillConfig
    from distill.presets import PRESETS

    name = preset or (scenario if scenario in PRESETS else "standard")
    if path is None and name not in PRESETS:
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}")
    config = PRESETS[name]() if path is None else load_config(path, DistillConfig)
    loop = {key: value for key, value in changes.items() if hasattr(config.loop, key)}
    own = {key: value for key, value in changes.items() if key not in loop}
    whole_loop = to_builtins(with_changes(config.loop, loop, source="options"))
    return with_changes(config, {**own, "loop": whole_loop}, source="options")


def parse_weights(texts: list[str], option: str) -> dict[str, float]:
    """``["click=2"]`` becomes ``{"click": 2.0}``.

    Raises:
        ConfigError: A text has another form.
    """
    from contracts.errors import ConfigError

    weights = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            raise ConfigError(f"{option}: expected NAME=NUMBER, got {text!r}") from None
    return weights


def _print_headline(evaluation: "Evaluation") -> None:
    from rich.console import Console
    from rich.table import Table

    from distill.report import format_number, headline

    table = Table("figure", "value", title=f"{evaluation.scenario}: {evaluation.pairs:,} pairs")
    for name, value in headline(evaluation).items():
        table.add_row(name, format_number(value))
    Console().print(table)
