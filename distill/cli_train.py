"""``adsieve distill train``: a student out of the teacher's scores."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contracts.console import From, Json, Until, completing, print_json
from distill.cli_options import Candidates, Logs, scenario_names
from distill.cli_warm import Store, WarmStartOption, serving_in, warm_choice
from modeling.mlflow_run import Mlflow, Outcome, tracking

if TYPE_CHECKING:
    from distill.config import DistillConfig
    from distill.run import RunSummary

PRESET_NAMES = ("standard", "shopping", "plain_mlp", "multi_domain")
"""For a shell, which does not wait for the presets to be imported."""


def train(
    context: typer.Context,
    logs: Logs,
    schema: Annotated[Path, typer.Option(help="Fitted feature schema without pair features.")],
    scenario: Annotated[
        list[str],
        typer.Option(
            autocompletion=scenario_names,
            help="Whose requests to learn from; one student serves one scenario. Repeat it to learn several together, "
            "with preset multi_domain.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Run directory. Called again, an interrupted run goes on from its checkpoint.")
    ],
    candidates: Candidates = None,
    preset: Annotated[
        str | None,
        typer.Option(
            autocompletion=completing(PRESET_NAMES),
            help="Sizes and rates to start from: standard, shopping, plain_mlp (the conventional two-tower) or "
            "multi_domain (several scenarios); the scenario's own, else standard.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with a whole configuration, instead of a preset; docs/reference/configuration.md lists "
            "every key."
        ),
    ] = None,
    start: From = None,
    end: Until = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the pairs; the presets' 9.")] = None,
    pairs_per_batch: Annotated[
        int | None, typer.Option(min=1, help="Pairs a batch, whole requests of one day; the presets' 2,048.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak rate of the towers; the preset's, 0.004 to 0.008.")
    ] = None,
    table_learning_rate: Annotated[
        float | None, typer.Option(help="Peak rate of the embedding tables; the presets' 0.15.")
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(
            help="Last share of the pairs by time that decides when to stop; the presets' 0.1, and 0 trains on all."
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="Validations without a better KL after which training stops; the presets' 3."),
    ] = None,
    label_weight: Annotated[
        float | None,
        typer.Option(
            help="What a winner's true label counts beside the teacher where it is known: 0, the teacher alone, to "
            "1, the label alone; the presets' 0."
        ),
    ] = None,
    listwise_weight: Annotated[
        float | None,
        typer.Option(
            help="Weight of a term for the order within a request; it moves ads against each other and leaves the "
            "level of probabilities to the KL; the presets' 0."
        ),
    ] = None,
    listwise_temperature: Annotated[
        float | None, typer.Option(help="Of that term; more than 1 looks further down the list; the presets' 1.")
    ] = None,
    head_weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK=X",
            help="Weight of one head's loss, such as conversion=0.5; 1 unless named. Repeat for others.",
        ),
    ] = None,
    stage_weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE=X",
            help="Factor for pairs that got as far as eligible, candidate or winner, such as winner=2; 1 unless named. "
            "Repeat for others.",
        ),
    ] = None,
    propensity_weights: Annotated[
        bool | None,
        typer.Option("--propensity-weights", help="Weigh randomly explored ads by their inverse propensity."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of initial weights and order; the presets' 0.")] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Write losses and rates for TensorBoard into the run.")
    ] = None,
    warm_start: WarmStartOption = None,
    store: Store = "store",
    mlflow: Mlflow = None,
    json: Json = False,
) -> None:
    """Distil a student: the lowest KL to the teacher's scores on the latest requests wins.

    It begins from the student that serves, where there is one of equal sizes, and else with fresh weights.

    Several processes train one student with `torchrun --nproc-per-node N -m -- adsieve distill train ...`.
    """
    from contracts.names import check_scenario
    from contracts.progress import tell
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
        "label_weight": label_weight,
        "listwise_weight": listwise_weight,
        "listwise_temperature": listwise_temperature,
        "head_weights": parse_weights(head_weight, "--head-weight") if head_weight else None,
        "stage_weights": parse_weights(stage_weight, "--stage-weight") if stage_weight else None,
        "propensity_weights": propensity_weights,
        "seed": seed,
        "tensorboard": tensorboard,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    scenarios = tuple(dict.fromkeys(map(check_scenario, scenario)))
    with join_ranks() as ranks:
        chosen, log = choose_config(preset, config, scenarios, given), LogPaths.under(logs, candidates)
        fitted = load_schema(schema, fitted=True)
        source, why = warm_choice(warm_start, out, scenarios, chosen, serving_in(context, store), store)
        if ranks.is_main:
            tell(why)
        with tracking(mlflow if ranks.is_main else None, "distill train", place=out, params=chosen) as track:
            run = train_student(
                fitted,
                log,
                out,
                chosen,
                scenario=scenarios[0] if len(scenarios) == 1 else scenarios,
                start=start,
                end=end,
                ranks=ranks,
                warm_start=source,
            )
            track(_outcome_of(run.summary, logs))
    if not ranks.is_main:
        return
    if json:
        print_json({"run": str(out), "summary": run.summary})
        return
    summary = run.summary
    print(f"distilled {summary.scenario} from {summary.teacher_version} on {summary.pairs:,} pairs, run in {out}")
    for task, kl in summary.metrics.get("validation_kl", {}).items():
        print(f"  validation KL, {task}: {kl:.4g}")


def _outcome_of(summary: "RunSummary", log: Path) -> Outcome:
    """What a finished training tells MLflow."""
    return Outcome(
        metrics={**summary.metrics, "pairs": summary.pairs, "steps": summary.steps},
        history=summary.history,
        tags={
            "schema_fingerprint": summary.schema_fingerprint,
            "scenario": summary.scenario,
            "teacher_version": summary.teacher_version,
        },
        logs=[log],
        watermark=summary.watermark,
    )


def choose_config(
    preset: str | None, path: Path | None, scenarios: tuple[str, ...], changes: dict[str, Any]
) -> "DistillConfig":
    """The configuration of a file, or of a preset, with single values changed.

    Args:
        preset: Name of a preset; None takes the one that is named like the scenario, else ``standard``, and for
            several scenarios ``multi_domain``, whose domains become these.
        path: YAML file, instead of a preset.
        scenarios: To be distilled for.
        changes: By field name, of the training loop or of the configuration itself.

    Raises:
        ConfigError: There is no such preset, or the file or a change does not fit.
    """
    from msgspec import to_builtins
    from msgspec.structs import replace

    from contracts.config import load_config, with_changes
    from contracts.errors import ConfigError
    from distill.config import DistillConfig
    from distill.presets import PRESETS

    if path is not None and preset is not None:
        raise ConfigError(f"config: expected a file or a preset, got both {path} and {preset!r}")
    name = preset or _own_preset(scenarios)
    if path is None and name not in PRESETS:
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}")
    config = PRESETS[name]() if path is None else load_config(path, DistillConfig)
    if path is None and config.towers.domains and len(scenarios) > 1:
        config = replace(config, towers=replace(config.towers, domains=scenarios))
    loop = {key: value for key, value in changes.items() if hasattr(config.loop, key)}
    own = {key: value for key, value in changes.items() if key not in loop}
    whole_loop = to_builtins(with_changes(config.loop, loop, source="options"))
    return with_changes(config, {**own, "loop": whole_loop}, source="options")


def _own_preset(scenarios: tuple[str, ...]) -> str:
    from distill.presets import DEFAULT_PRESET, SCENARIO_PRESETS, SEVERAL_SCENARIOS

    return SEVERAL_SCENARIOS if len(scenarios) > 1 else SCENARIO_PRESETS.get(scenarios[0], DEFAULT_PRESET)


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
