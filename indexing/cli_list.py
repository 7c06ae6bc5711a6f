"""``adsieve index list``: what serves, what a rollback can reach, and how old it is."""

import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contracts.console import Json, print_json, shown_store
from indexing.cli_options import Local, Store, opened_store, unknown_scenario

if TYPE_CHECKING:
    from indexing.listing import Listed


_LOST = "has lost the releases of {}: they are listed as this host mirrors them, and the next publish brings them back"


def list_releases(
    scenario: Annotated[str | None, typer.Option(help="One scenario; without it, all.")] = None,
    store: Store = "store",
    local: Local = None,
    json: Json = False,
) -> None:
    """List the releases of a store, newest first; the first of each scenario is the one that serves.

    `earlier` ones are what a rollback steps back to, in this order; `aside` are others that are whole, for
    `rollback --to`; of `pruned` ones only the record is left. A scenario whose pointer is damaged is listed without it,
    and the exit code is 1, as where the log of updates cannot be read. Lines of it that are damaged are told.
    """
    from contracts.errors import AdsieveError, ArtifactError
    from indexing.listing import listed, recorded
    from indexing.update_warnings import damage

    opened, now = opened_store(store, local), datetime.now(UTC)
    found, damaged, warnings, known = {}, [], [], opened.scenarios()
    if known and scenario is not None and scenario not in known:
        raise unknown_scenario(opened, scenario)
    for name in known if scenario is None else [scenario]:
        try:
            found[name] = listed(opened.local, name, now)
        except ArtifactError as error:
            damaged.append(f"DAMAGED STORE: {error}")
            found[name] = recorded(opened.local, name, now)
    with suppress(AdsieveError):  # out of reach, which was told
        warnings = [f"{shown_store(store)} {_LOST.format(name)}" for name in opened.lost()]
    try:
        warnings += damage(opened.local.update_log())
    except ArtifactError as error:
        damaged.append(f"DAMAGED STORE: {error}")
    for line in [*damaged, *(f"warning: {warning}" for warning in warnings)]:
        print(line, file=sys.stderr)
    if json:
        releases = {name: [_plain(one) for one in of_scenario] for name, of_scenario in found.items()}
        print_json({"releases": releases, "warnings": [*damaged, *warnings]})
    elif any(found.values()):
        _print(found)
    else:
        there = "://" in store or Path(store).is_dir()
        print(f"{shown_store(store)}: {'no release' if there else 'no such directory, so no release'}")
    if damaged:
        raise typer.Exit(1)


def _print(found: "dict[str, list[Listed]]") -> None:
    from rich.console import Console

    from indexing.release_table import release_table

    console = Console(highlight=False)
    for name, releases in found.items():
        console.print(release_table(name, releases))


def _plain(one: "Listed") -> dict[str, Any]:
    import msgspec

    fields = ("state", "pinned", "age_s", "watermark", "watermark_age_s")
    return {**msgspec.to_builtins(one.release), **{name: getattr(one, name) for name in fields}}
