"""``adsieve index list``: what serves, what a rollback can reach, and how old it is."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contracts.console import Json, console, print_error, print_json, shown_store, warn
from indexing.cli_options import Local, Store, asked_store, from_mirror, scenario_names, unknown_scenario

if TYPE_CHECKING:
    from indexing.listing import Listed


_NOWHERE = "has releases of {} and no pointer, nor has this host: the next publish restores it from the releases"
_LOST = "has lost the releases of {}: they are listed as this host mirrors them, and the next publish brings them back"


def list_releases(
    scenario: Annotated[
        str | None, typer.Option(autocompletion=scenario_names, help="One scenario; without it, all.")
    ] = None,
    store: Store = "store",
    local: Local = None,
    json: Json = False,
) -> None:
    """List the releases of a store, newest first; the first of each scenario is the one that serves.

    `earlier` ones are what a rollback steps back to, in this order; `aside` are others that are whole, for
    `rollback --to`; of `pruned` ones only the record is left. A scenario whose pointer is damaged is listed without it,
    and the exit code is 1, as where the log of updates cannot be read. Lines of it that are damaged are told. Where a
    Redis server is out of reach, what this host mirrors of it is listed with the time of the mirror, and the exit code
    is 1.
    """
    from contracts.errors import AdsieveError, ArtifactError
    from indexing.listing import listed, recorded
    from indexing.update_warnings import damage

    (opened, mirror), now = asked_store(store, local), datetime.now(UTC)
    found, damaged, warnings, known = {}, [], [], opened.scenarios()
    if known and scenario is not None and scenario not in known:
        if mirror is not None:
            raise AdsieveError(f"{mirror.reason}; --scenario {scenario} has no release in {mirror.place}")
        raise unknown_scenario(opened, scenario)
    for name in known if scenario is None else [scenario]:
        try:
            found[name] = listed(opened.local, name, now)
        except ArtifactError as error:
            damaged.append(f"DAMAGED STORE: {error}")
            found[name] = recorded(opened.local, name, now)
    try:
        if mirror is None:  # another process may hold the mirror, so that it is asked here for the first time
            lost = opened.lost()
            warnings = [f"{shown_store(store)} {_LOST.format(name)}" for name in lost if name in known]
            damaged += [
                f"DAMAGED STORE: {shown_store(store)} {_NOWHERE.format(name)}" for name in lost if name not in known
            ]
    except AdsieveError as error:
        mirror = from_mirror(opened, error)
    if mirror is not None:
        damaged.append(f"OUT OF REACH: {mirror}")
    try:
        warnings += damage(opened.local.update_log())
    except ArtifactError as error:
        damaged.append(f"DAMAGED STORE: {error}")
    for line in damaged:
        print_error(line)
    for warning in warnings:
        warn(warning)
    if json:
        releases = {name: [_plain(one) for one in of_scenario] for name, of_scenario in found.items()}
        at = None if mirror is None else {"path": str(mirror.root), "as_of": mirror.as_of, "reason": mirror.reason}
        print_json({"releases": releases, "from_mirror": at, "warnings": [*damaged, *warnings]})
    elif any(found.values()):
        if mirror is not None:
            print(f"{shown_store(store)}: out of reach; from {mirror.place}:")
        _print(found)
    elif mirror is not None:
        print(f"{shown_store(store)}: out of reach; no release in {mirror.place}")
    else:
        there = "://" in store or Path(store).is_dir()
        print(f"{shown_store(store)}: {'no release' if there else 'no such directory, so no release'}")
    if damaged:
        raise typer.Exit(1)


def _print(found: "dict[str, list[Listed]]") -> None:
    from indexing.release_table import release_table

    shown = console()
    for name, releases in found.items():
        shown.print(release_table(name, releases))


def _plain(one: "Listed") -> dict[str, Any]:
    import msgspec

    fields = ("state", "pinned", "age_s", "watermark", "watermark_age_s")
    return {**msgspec.to_builtins(one.release), **{name: getattr(one, name) for name in fields}}
