"""``adsieve index publish``, ``rollback``, ``pin``, ``unpin`` and ``prune``: all that moves or removes a release."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.console import Json, print_json, shown_store
from indexing.cli_options import (
    Heavy,
    Local,
    Store,
    TwoTower,
    opened_store,
    release_ids,
    scenario_names,
    store_to_change,
)

if TYPE_CHECKING:
    from contracts.release import Release
    from indexing.release_gate import Judged
    from indexing.release_limits import ReleaseLimits
    from indexing.stores import Store as OpenStore

MAX_REASON = 500

DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what would happen and change nothing.")]
ReleaseId = Annotated[
    str,
    typer.Argument(
        metavar="RELEASE", autocompletion=release_ids, help="Id of a release, as `adsieve index list` shows it."
    ),
]


def publish(
    two_tower: TwoTower,
    index: Annotated[
        Path,
        typer.Option(exists=True, file_okay=False, help="Index that `adsieve index build` made with the same bundles."),
    ],
    heavy: Heavy = None,
    limits: Annotated[
        Path | None,
        typer.Option(help="YAML file with limits of the replay, where they are not to be the usual ones."),
    ] = None,
    override: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Publish although the replay is beyond its limits. The reason and what failed stay in the release.",
        ),
    ] = None,
    dry_run: DryRun = False,
    store: Store = "store",
    local: Local = None,
    json: Json = False,
) -> None:
    """Verify bundles and index together, and make them the release that serves their scenario, in one step.

    The saved requests of the two-tower bundle are replayed first, beside the release that serves. Beyond the limits the
    release is refused, with exit code 1, and every figure is named.
    """
    from indexing.release_gate import Candidate, judge, publish_release

    opened = opened_store(store, local) if dry_run else store_to_change(store, local)
    candidate = Candidate(two_tower=two_tower, heavy=heavy, index=index)
    reason, held = _reason(override), _limits(limits)
    if dry_run:
        judged = judge(opened, candidate, held, reason)
        _show_dry(judged, json)
        raise typer.Exit(1 if judged.is_refused else 0)
    release = publish_release(opened, candidate, limits=held, override=reason)
    judgement = release.judgement
    if judgement is not None and override is not None:
        taken = f"published all the same: {judgement.override}"
        needless = "nothing failed: the override was not needed and is not recorded"
        print(needless if judgement.override is None else taken, file=sys.stderr)
    _show(release, "published", json)


def rollback(
    scenario: Annotated[str, typer.Option(autocompletion=scenario_names, help="The scenario whose pointer goes back.")],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="RELEASE",
            autocompletion=release_ids,
            help="Release to go to; without it, the one before the current.",
        ),
    ] = None,
    store: Store = "store",
    local: Local = None,
    json: Json = False,
) -> None:
    """Point a scenario to its release before the current one, after verifying it. Running services follow.

    `--to` goes to any release that is whole, also to a later one. Updates through the day stay in effect: an ad that
    was taken down since stays down.
    """
    opened = store_to_change(store, local)
    before = _serving(opened, scenario)
    release = opened.rollback(scenario, to)
    _show(release, _direction(before, release), json)


def pin(release: ReleaseId, store: Store = "store", local: Local = None, json: Json = False) -> None:
    """Keep a release from `adsieve index prune`, until it is unpinned."""
    store_to_change(store, local).pin(_scenario(release), release)
    _show_pinned(release, True, json)


def unpin(release: ReleaseId, store: Store = "store", local: Local = None, json: Json = False) -> None:
    """Give a pinned release back to `adsieve index prune`."""
    store_to_change(store, local).unpin(_scenario(release), release)
    _show_pinned(release, False, json)


def prune(
    keep: Annotated[
        int, typer.Option(min=1, help="Releases of each scenario to keep, the current one among them.")
    ] = 3,
    dry_run: DryRun = False,
    store: Store = "store",
    local: Local = None,
    json: Json = False,
) -> None:
    """Remove releases that neither serve nor are pinned nor are among the last ones, and updates that nothing needs.

    A part that a kept release of any scenario uses stays. A running service keeps what it has loaded. Of updates go
    those that later ones replace or every kept index has merged; a takedown that stands stays.
    """
    from dataclasses import asdict

    pruned = store_to_change(store, local).prune(keep, dry_run=dry_run)
    if json:
        print_json({"dry_run": dry_run, **asdict(pruned)})
        return
    shown = shown_store(store)
    would = "would remove" if dry_run else "removed"
    for what, names in (("release", pruned.releases), ("bundle", pruned.bundles), ("index", pruned.indexes)):
        for name in names:
            print(f"{would} {what} {name}")
    print(f"{shown}: {pruned.bytes / 1e6:,.1f} MB {'to be freed' if dry_run else 'freed'}")
    if pruned.updates:
        merged, replaced = pruned.updates - pruned.replaced, pruned.replaced
        print(
            f"{shown}: {merged:,} updates that every kept index has merged and {replaced:,} that later ones replace "
            f"{'to be ' * dry_run}dropped"
        )
    if pruned.waiting:
        some = ", ".join(pruned.waiting[:5]) + (", ..." if len(pruned.waiting) > 5 else "")
        print(
            f"{shown}: content of {len(pruned.waiting):,} ads is in updates alone; it stays in the log until a "
            f"catalogue has it: {some}"
        )


def _show_pinned(release: str, pinned: bool, json: bool) -> None:
    if json:
        print_json({"release": release, "pinned": pinned})
    else:
        print(f"{release}: {'pinned' if pinned else 'no longer pinned'}")


def _serving(store: "OpenStore", scenario: str) -> "Release | None":
    """What serves before a rollback, which restores what is damaged of it."""
    from contracts.errors import ArtifactError

    try:
        return store.current(scenario)
    except ArtifactError:
        return None


def _direction(before: "Release | None", after: "Release") -> str:
    """What a rollback did, in words."""
    if before is None or before.number == after.number:
        return "set to" if before is None else "stays at"
    return "rolled back to" if after.number < before.number else "gone forward to"


def _reason(override: str | None) -> str | None:
    from contracts.errors import InputError

    if override is not None and not (override.strip() and override.isprintable() and len(override) <= MAX_REASON):
        raise InputError(f"--override: expected a reason of one line and at most {MAX_REASON:,} printable characters")
    return override


def _limits(path: Path | None) -> "ReleaseLimits":
    from contracts.config import load_config
    from indexing.release_limits import ReleaseLimits

    return ReleaseLimits() if path is None else load_config(path, ReleaseLimits)


def _scenario(release_id: str) -> str:
    """The scenario that a release is of: its id is that name, a time and a few random digits."""
    from contracts.errors import InputError
    from contracts.names import check_made_name

    parts = check_made_name(release_id, "release").rsplit("-", 2)
    if len(parts) < 3:
        raise InputError(f"{release_id!r}: expected the id of a release, as `adsieve index list` shows it")
    return parts[0]


def _show(release: "Release", verb: str, json: bool) -> None:
    import msgspec

    if json:
        print_json(msgspec.to_builtins(release))
        return
    print(f"{release.scenario}: {verb} {release.release_id}")
    print(f"  two_tower {release.two_tower}\n  heavy     {release.heavy or '-'}\n  index     {release.index}")
    for name, value in release.metrics.items():
        print(f"  {name} {value:.4g}")
    if release.judgement is not None:
        for warning in release.judgement.warnings:
            print(f"  warning: {warning}")
        for reason in release.judgement.skipped:
            print(f"  not judged: {reason}")


def _show_dry(judged: "Judged", json: bool) -> None:
    import msgspec

    if json:
        found = {"scenario": judged.scenario, "refused": judged.is_refused, "metrics": judged.metrics}
        print_json({**found, "judgement": msgspec.to_builtins(judged.judgement)})
        return
    print("\n".join([*judged.lines(), "would be refused" if judged.is_refused else "would be published"]))
