"""What ``adsieve distill train`` begins from: the student that serves, another one, or fresh weights."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.console import shown_store

if TYPE_CHECKING:
    from distill.config import DistillConfig
    from distill.warmstart import Beginning, WarmSource

FRESH = "none"

Serving = Callable[[str, str], Path | None]
"""From a store and a scenario to the bundle that serves there. The front door knows stores; it hands this in as the
object of the command's context."""

WarmStartOption = Annotated[
    str | None,
    typer.Option(
        "--warm-start",
        metavar="PATH|none",
        help="Bundle or run of equal tower sizes to begin from, features that are new or changed apart; `none` begins "
        "with fresh weights. By default the bundle that serves the scenario in --store, where there is one.",
    ),
]
Store = Annotated[
    str,
    typer.Option(
        metavar="DIRECTORY|URL",
        envvar="ADSIEVE_STORE",
        help="What holds the releases, a directory or the URL of a Redis server; asked what serves.",
    ),
]


def warm_choice(
    option: str | None,
    out: Path,
    scenarios: tuple[str, ...],
    config: "DistillConfig",
    serving: Callable[[str], Path | None],
    store: str,
) -> tuple["WarmSource | Beginning | None", str]:
    """What a run begins from, or goes on from, and in words why.

    Args:
        option: As given: a path, ``none``, or None for what serves.
        out: Run directory; a run that has begun there goes on with what it began from.
        scenarios: To be distilled for; what serves the first counts.
        config: Of the run.
        serving: The bundle that serves a scenario, if any.
        store: Where ``serving`` looks, for messages.

    Raises:
        InputError: The path is no bundle or run, or its towers have other sizes.
    """
    from contracts.errors import InputError
    from distill.warmstart import begun, difference, open_source

    if option is not None:
        if option == FRESH:
            return None, ""
        source = open_source(Path(option))
        other = difference(source.config, config)
        if other is not None:
            raise InputError(f"--warm-start {option}: cannot be carried over, {other}; expected towers of equal sizes")
        return source, ""
    earlier = begun(out)
    if earlier is not None:
        return earlier, ""
    return _serving_source(serving(scenarios[0]), scenarios[0], config, store)


def _serving_source(
    path: Path | None, scenario: str, config: "DistillConfig", store: str
) -> tuple["WarmSource | None", str]:
    from contracts.errors import ConfigError, MismatchError
    from distill.warmstart import difference, open_source

    if path is None:
        nothing = f"nothing serves {scenario} in the store {shown_store(store)} (--store)"
        return None, f"{nothing}: beginning with fresh weights"
    try:
        source = open_source(path)
        other = difference(source.config, config)
    except (ConfigError, MismatchError) as error:
        other = str(error)
    if other is not None:
        return None, f"beginning with fresh weights, not with {path.name}, which serves: {other}"
    return source, ""


def serving_in(context: typer.Context, store: str) -> Callable[[str], Path | None]:
    """The bundle that serves a scenario in a store; none where no front door has told how to find it."""
    serving: Serving | None = context.obj
    return lambda scenario: None if serving is None else serving(store, scenario)
