"""``adsieve index list``: what serves, what a rollback can reach, and how old it is."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contracts.console import Json, print_json
from indexing.cli_options import Local, Store, opened_store

if TYPE_CHECKING:
    from indexing.listing import Listed

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def list_releases(
    scenario: Annotated[str | None, typer.Option(help="One scenario; without it, all.")] = None,
    store: Store = "store",
    local: Local = None,
    json: Json = False,
) -> None:
    """List the releases of a store, newest first; the first of each scenario is the one that serves.

    `earlier` ones are what a rollback steps back to, in this order; `aside` are others that are whole, for
    `rollback --to`; of `pruned` ones only the record is left. A scenario whose pointer is damaged is listed without it,
    and the exit code is 1.
    """
    from contracts.errors import ArtifactError
    from indexing.listing import listed, recorded

    opened, now = opened_store(store, local), datetime.now(UTC)
    found, damaged = {}, False
    for name in opened.scenarios() if scenario is None else [scenario]:
        try:
            found[name] = listed(opened.local, name, now)
        except ArtifactError as error:
            print(f"DAMAGED STORE: {error}", file=sys.stderr)
            found[name], damaged = recorded(opened.local, name, now), True
    _print(found, store, json)
    if damaged:
        raise typer.Exit(1)


def _print(found: "dict[str, list[Listed]]", store: str, json: bool) -> None:
    if json:
        print_json({name: [_plain(one) for one in of_scenario] for name, of_scenario in found.items()})
        return
    for of_scenario in found.values():
        for one in of_scenario:
            print("\n".join(_lines(one)))
    if not any(found.values()):
        print(f"{store}: no release")


def age(seconds: float) -> str:
    """Two units of a duration; a time that lies ahead, as after a clock moved back, counts as now.

    Example:
        >>> age(93_600), age(59), age(-5)
        ('1 d 2 h', '59 s', '0 s')
    """
    rest = max(int(seconds), 0)
    shown: list[tuple[int, str]] = []
    for name, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or shown:
            shown.append((count, name))
    return " ".join(f"{count} {name}" for count, name in shown[:2] if count) or "0 s"


def _lines(one: "Listed") -> list[str]:
    release, pinned = one.release, " pinned" if one.pinned else ""
    data = "" if one.watermark_age_s is None else f", data {age(one.watermark_age_s)} old"
    found = [f"{release.scenario}  {one.state}{pinned}  {release.release_id}  {age(one.age_s)} old{data}"]
    found.append(f"  {release.two_tower} {release.heavy or '-'} {release.index}")
    if release.metrics:
        found.append("  " + ", ".join(f"{name} {value:.4g}" for name, value in release.metrics.items()))
    if release.judgement is not None and release.judgement.override is not None:
        found.append(f"  published all the same: {release.judgement.override}")
    return found


def _plain(one: "Listed") -> dict[str, Any]:
    import msgspec

    fields = ("state", "pinned", "age_s", "watermark", "watermark_age_s")
    return {**msgspec.to_builtins(one.release), **{name: getattr(one, name) for name in fields}}
