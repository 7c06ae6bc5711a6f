"""``adsieve index publish``, ``list`` and ``rollback``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.console import Json, print_json
from indexing.cli_options import Heavy, Store, TwoTower

if TYPE_CHECKING:
    from contracts.release import Release


def publish(
    two_tower: TwoTower,
    index: Annotated[
        Path,
        typer.Option(exists=True, file_okay=False, help="Index that `adsieve index build` made with the same bundles."),
    ],
    heavy: Heavy = None,
    store: Store = Path("store"),
    json: Json = False,
) -> None:
    """Verify bundles and index together, and make them the release that serves their scenario, in one step."""
    from indexing.store import DirectoryStore

    _show(DirectoryStore(store).publish(two_tower=two_tower, heavy=heavy, index=index), "published", json)


def list_releases(
    scenario: Annotated[str | None, typer.Option(help="One scenario; without it, all.")] = None,
    store: Store = Path("store"),
    json: Json = False,
) -> None:
    """List the releases of a store, newest first; the first of each scenario is the one that serves."""
    import msgspec

    from indexing.store import DirectoryStore

    opened = DirectoryStore(store)
    scenarios = opened.scenarios() if scenario is None else [scenario]
    releases = {name: opened.list(name) for name in scenarios}
    if json:
        print_json(msgspec.to_builtins(releases))
        return
    for name, of_scenario in releases.items():
        for position, release in enumerate(of_scenario):
            state = "current" if position == 0 else "earlier"
            parts = f"{release.two_tower} {release.heavy or '-'} {release.index}"
            print(f"{name}  {state}  {release.release_id}  {release.created_at}  {parts}")
    if not any(releases.values()):
        print(f"{store}: no release")


def rollback(
    scenario: Annotated[str, typer.Option(help="The scenario whose pointer goes one release back.")],
    store: Store = Path("store"),
    json: Json = False,
) -> None:
    """Point a scenario to its release before the current one, after verifying it. Running services follow."""
    from indexing.store import DirectoryStore

    _show(DirectoryStore(store).rollback(scenario), "rolled back to", json)


def _show(release: "Release", verb: str, json: bool) -> None:
    import msgspec

    if json:
        print_json(msgspec.to_builtins(release))
    else:
        print(f"{release.scenario}: {verb} {release.release_id}")
        print(f"  two_tower {release.two_tower}\n  heavy     {release.heavy or '-'}\n  index     {release.index}")
