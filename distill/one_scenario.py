"""A student of several scenarios as the student of one of them: what is sealed, indexed and served."""

import msgspec

from contracts.errors import InputError
from distill.run import Run
from towers.multi_domain import fold_config, fold_domain


def of_scenario(run: Run, scenario: str | None = None) -> Run:
    """The run as that of one scenario: the domain has become a constant of model and configuration.

    Args:
        run: A finished run, of one scenario or several.
        scenario: Which; None where the run has only one.

    Raises:
        InputError: The run has several scenarios and none is named, or not the one that is.
    """
    scenarios = run.config.towers.domains or (run.summary.scenario,)
    if scenario is None and len(scenarios) > 1:
        raise InputError(f"{run.path}: was distilled for {' and '.join(scenarios)}; name one with --scenario")
    chosen = scenario or scenarios[0]
    if chosen not in scenarios:
        raise InputError(f"scenario: expected {' or '.join(scenarios)}, of {run.path}, got {chosen!r}")
    if not run.config.towers.domains:
        return run
    return Run(
        run.path,
        run.schema,
        msgspec.structs.replace(run.config, towers=fold_config(run.config.towers)),
        fold_domain(run.model, scenarios.index(chosen)),
        msgspec.structs.replace(run.summary, scenario=chosen, scenarios=()),
        folded=True,
    )
