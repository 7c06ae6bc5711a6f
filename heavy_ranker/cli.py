"""``adsieve heavy``: train, evaluate, export and score with the heavy ranker."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from contracts.apart import ApartCommand
from contracts.console import From, Json, Until, completing, print_json, warn
from heavy_ranker.cli_incremental import (
    FirstDays,
    FoldBy,
    SeriesChoice,
    SeriesOption,
    WarmStartOption,
    run_series,
    warm_config,
)
from heavy_ranker.cli_metrics import outcome_of, print_metrics
from heavy_ranker.cli_options import Log, RunOption, chosen_run
from heavy_ranker.cli_scale import scale
from heavy_ranker.cli_score import score
from heavy_ranker.worth import require_worth, warning
from modeling.mlflow_run import Mlflow, Outcome, tracking

if TYPE_CHECKING:
    from heavy_ranker.config import HeavyConfig

PRESET_NAMES = ("small", "medium", "iqiyi")
"""For a shell, which does not wait for the presets to be imported."""

app = typer.Typer(
    name="heavy",
    help="The heavy ranker: train the teacher, judge it, seal it, let it score a log.",
    no_args_is_help=True,
)


@app.command(cls=ApartCommand)
def train(
    log: Log,
    schema: Annotated[Path, typer.Option(help="Fitted feature schema, as `adsieve schema fit` writes it.")],
    out: Annotated[
        Path, typer.Option(help="Run directory. Called again, an interrupted run goes on from its checkpoint.")
    ],
    preset: Annotated[
        str | None,
        typer.Option(
            autocompletion=completing(PRESET_NAMES),
            help="Sizes and rates to start from: small (the default: about a minute on two cores for 100,000 "
            "impressions), medium (best on the real log: some minutes) or iqiyi (published sizes: 65 MFLOPs an ad).",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with a whole configuration, instead of a preset; docs/reference/configuration.md lists "
            "every key."
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(help="hyformer, din_dcn, masknet or rankmixer; several, separated by commas, form an ensemble."),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Layers of the backbone; of hyformer one mixes twice, of the others a layer is two blocks."
        ),
    ] = None,
    start: From = None,
    end: Until = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the impressions; of small 3.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Impressions a batch; of small 256.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak rate of the dense layers; of small 0.001.")] = None,
    table_learning_rate: Annotated[
        float | None, typer.Option(help="Peak rate of the embedding tables; of small 0.05.")
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(help="Last share of the impressions by time to validate on; of small 0.1, and 0 trains on all."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of initial weights and order.")] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Write losses and rates for TensorBoard into the run.")
    ] = None,
    warm_start: WarmStartOption = None,
    series: SeriesOption = None,
    first_days: FirstDays = 1,
    fold_by: FoldBy = "request_id",
    mlflow: Mlflow = None,
    json: Json = False,
) -> None:
    """Train on what was shown: clicks, and whatever the schema chains after them.

    Several processes train one model with `torchrun --nproc-per-node N -m -- adsieve heavy train ...`.
    """
    from msgspec import to_builtins

    from contracts.records import LogPaths
    from contracts.schema import load_schema
    from heavy_ranker.train import train_heavy
    from heavy_ranker.warmstart import open_source
    from modeling.distributed import join_ranks

    changes = {
        "backbones": None if backbone is None else backbone.split(","),
        "num_layers": layers,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "table_learning_rate": table_learning_rate,
        "validation_share": validation_share,
        "seed": seed,
        "tensorboard": tensorboard,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    if series is not None:
        if warm_start is not None:
            raise typer.BadParameter("a series begins with fresh weights", param_hint="--warm-start")
        choice = SeriesChoice.parse(series, first_days=first_days, fold_by=fold_by)
        chosen = choose_config(preset, config, given)
        return run_series(choice, log, schema, out, chosen, start, end, mlflow=mlflow, json=json)
    with join_ranks() as ranks:
        source = None if warm_start is None else open_source(chosen_run(warm_start))
        chosen = choose_config(preset, config, given, base=None if source is None else warm_config(source))
        log_paths, fitted = LogPaths.under(log), load_schema(schema, fitted=True)
        with tracking(mlflow if ranks.is_main else None, "heavy train", place=out, params=chosen) as track:
            run = train_heavy(fitted, log_paths, out, chosen, start=start, end=end, ranks=ranks, warm_start=source)
            track(outcome_of(run.summary, log))
    if not ranks.is_main:
        return
    result = {
        "run": str(out),
        "impressions": run.summary.impressions,
        "parameters": run.summary.parameters,
        "flops": to_builtins(run.summary.flops),
        "watermark": run.summary.watermark,
        "validation": run.summary.metrics,
        "warm_start": to_builtins(run.summary.warm_start),
    }
    if worthless := warning(run.summary.metrics):
        warn(worthless)
    if json:
        print_json(result)
        return
    print(f"trained on {run.summary.impressions:,} impressions up to {run.summary.watermark}, run in {out}")
    print(run.summary.flops)
    if run.summary.metrics:
        print_metrics({"validation": {"model": run.summary.metrics}})


@app.command(cls=ApartCommand)
def evaluate(
    log: Log,
    run: RunOption,
    start: From = None,
    end: Until = None,
    out: Annotated[Path | None, typer.Option(help="Also write the result to this JSON file.")] = None,
    mlflow: Mlflow = None,
    json: Json = False,
) -> None:
    """Judge a run on the shown ads of a time window: log loss, normalised entropy, AUC, calibration, by scenario."""
    from contracts.artifact import write_json
    from contracts.records import LogPaths
    from heavy_ranker.evaluate import evaluate_run
    from heavy_ranker.flops import Flops
    from heavy_ranker.run import load_run

    judged = chosen_run(run)
    with tracking(mlflow, "heavy evaluate", place=judged) as track:
        result = {"run": str(judged)} | evaluate_run(load_run(judged), LogPaths.under(log), start=start, end=end)
        track(Outcome(metrics=result["slices"], logs=[log]))
    if out is not None:
        write_json(out, result)
    if json:
        print_json(result)
    else:
        print(Flops(**result["flops"]))
        print_metrics(result["slices"])


@app.command(cls=ApartCommand)
def export(
    log: Log,
    run: RunOption,
    out: Annotated[Path, typer.Option(help="Bundle to create; it appears whole or not at all.")],
    tables: Annotated[
        Literal["fp32", "int8"],
        typer.Option(help="int8 keeps tables in a quarter of the memory; refused where probabilities change too much."),
    ] = "fp32",
    max_normalised_entropy: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Refuse, with exit code 1, a teacher with a head whose normalised entropy on its validation part is "
            "this or more: 1 is no better than always predicting the base rate. Without it a head that reaches 1 is "
            "warned of.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Seal a bundle: two ONNX graphs, weights, and real rows of the log that prove the graphs equal to the model."""
    from contracts.records import LogPaths
    from heavy_ranker.export import export_heavy
    from heavy_ranker.run import load_run

    trained = load_run(chosen_run(run))
    if max_normalised_entropy is not None:
        for line in require_worth(trained.summary.metrics, max_normalised_entropy):
            warn(f"not judged: {line}")
    if worthless := warning(trained.summary.metrics):
        warn(worthless)
    bundle = export_heavy(trained, LogPaths.under(log), out, tables=tables)
    if json:
        print_json({"bundle": str(out), "version": bundle.manifest.version})
    else:
        print(f"sealed {bundle.manifest.version} at {out}")


app.command(cls=ApartCommand)(score)
app.command(cls=ApartCommand)(scale)


def choose_config(
    preset: str | None, path: Path | None, changes: dict[str, Any], *, base: "HeavyConfig | None" = None
) -> "HeavyConfig":
    """The configuration of a file, or of a preset, with single values changed.

    Args:
        preset: Name of a preset; not read where there is a file.
        path: YAML file.
        base: Instead of the preset ``small`` where neither is named.
        changes: By field name, of the model, of the training loop or of the configuration itself.

    Raises:
        ConfigError: There is no such preset, or the file does not fit.
    """
    from msgspec import to_builtins

    from contracts.config import load_config, with_changes
    from contracts.errors import ConfigError
    from heavy_ranker.config import HeavyConfig
    from heavy_ranker.presets import PRESETS

    if path is not None and preset is not None:
        raise ConfigError(f"config: expected a file or a preset, got both {path} and {preset!r}")
    if path is not None:
        config = load_config(path, HeavyConfig)
    elif preset is None and base is not None:
        config = base
    elif (name := preset or "small") in PRESETS:
        config = PRESETS[name]()
    else:
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, got {preset!r}")
    parts: dict[str, Any] = {}
    for part in ("model", "loop"):
        whole = getattr(config, part)
        own = {name: value for name, value in changes.items() if hasattr(whole, name)}
        parts[part] = to_builtins(with_changes(whole, own, source="options"))
        changes = {name: value for name, value in changes.items() if name not in own}
    return with_changes(config, changes | parts, source="options")
