"""``adsieve distill train``: a student out of the teacher's scores."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contracts.console import From, Json, Until, print_json
from distill.cli_options import Candidates, Logs

if TYPE_CHECKING:
    from distill.config import DistillConfig


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
