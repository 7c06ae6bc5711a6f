"""``adsieve index update``: takedowns, statuses, bids, budgets, new and changed ads, in effect within seconds."""

import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.console import Json, print_json, shown_store, warn
from indexing.cli_options import Local, Store, store_to_change

if TYPE_CHECKING:
    from indexing.stores import Store as OpenStore
    from indexing.update_checks import ContentChecks
    from indexing.update_record import Update
    from indexing.update_spool import UpdateSpool

_BLOCK = 4096

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE",
        help="JSON Lines, one update a line, or Parquet with the columns of an ads dataset; - reads JSON Lines from "
        "the standard input. In the order given, before the options.",
    ),
]


def update(
    files: Files = None,
    takedown: Annotated[
        list[str] | None, typer.Option(metavar="AD", help="Stop an ad, whatever any catalogue or build says.")
    ] = None,
    restore: Annotated[list[str] | None, typer.Option(metavar="AD", help="Lift the takedown of an ad.")] = None,
    status: Annotated[
        list[str] | None, typer.Option(metavar="AD=STATUS", help="Set the status: active, paused or removed.")
    ] = None,
    bid: Annotated[list[str] | None, typer.Option(metavar="AD=BID", help="Set the bid; AD=none takes it away.")] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AD=LEFT", help="Set what is left of the budget: 0 stops the ad; AD=none lifts the limit."
        ),
    ] = None,
    new_log: Annotated[
        bool,
        typer.Option(
            "--new-log",
            help="Begin another log of updates where the one there was is lost or damaged (in Redis: where no host has "
            "a copy), with the takedowns and used-up budgets that are left of it or known to hosts. What is left of "
            "the log of a directory is kept aside.",
        ),
    ] = False,
    store: Store = "store",
    local: Local = None,
    json: Json = False,
) -> None:
    """Update ads while services run: all of the input is checked first, and all of it is taken, or nothing.

    State (takedown, status, bid, budget) holds for every release, also those to come and those rolled back to. New and
    changed ads are embedded by each release that serves. The updates are in effect once `update` of the scenario in a
    service's `/releases` is at the printed position. Rows of Parquet that are of a scenario without a release are
    passed over and counted.
    """
    from contracts.config_errors import one_of
    from contracts.errors import InputError
    from indexing.update_checks import ContentChecks
    from indexing.update_warnings import require_no_lost_log, warnings

    by_hand = {"takedown": takedown, "restore": restore, "status": status, "bid": bid, "budget": budget}
    if not files and not any(by_hand.values()) and not new_log:
        raise InputError("nothing to update: expected files, or one of --" + ", --".join(by_hand))
    opened = store_to_change(store, local)
    if not opened.scenarios():
        _require_a_store(opened, shown_store(store))
    checks = ContentChecks(opened)
    options = {name: given or [] for name, given in by_hand.items()}
    updates, contents = _checked(chain(_from_files(files or [], checks), _from_options(options)), checks)
    told = checks.told_passed_over()
    if told is not None and not updates:
        raise InputError(f"nothing to update: {told}; expected rows of {one_of(opened.scenarios())}")
    carried = _set_aside(opened) if new_log else []
    if not new_log:
        require_no_lost_log(opened)
    if told is not None:
        warn(told)
    for warning in warnings(opened, updates, now_us=_now_us()):
        warn(warning)
    position = opened.append_updates(_behind(carried, updates)) if updates or new_log else None
    unread = sorted(checks.unread)
    if json:
        at = None if position is None else {"log": position.log, "seq": position.seq}
        counts = {"updates": len(updates), "contents": contents, "passed_over": checks.passed_over}
        print_json({**counts, "position": at, "unread_features": unread})
        return
    if unread:
        print(f"features that no current model reads, kept for later ones: {', '.join(unread)}", file=sys.stderr)
    where = "nothing was appended" if position is None else f"position {position.seq} of log {position.log}"
    print(f"{shown_store(store)}: {len(updates):,} updates, {contents:,} of them with content of an ad; {where}")


def _checked(given: "Iterator[tuple[str, Update]]", checks: "ContentChecks") -> "tuple[UpdateSpool, int]":
    """Check some thousands of updates at once; all of them, on disk, and how many bring content."""
    from indexing.update_spool import UpdateSpool

    spool, contents = UpdateSpool(), 0
    while block := list(islice(given, _BLOCK)):
        checks.check(block)
        spool.extend(update for _, update in block)
        contents += sum(update.content is not None for _, update in block)
    return spool, contents


def _behind(carried: "list[Update]", updates: "UpdateSpool") -> "UpdateSpool":
    from indexing.update_spool import UpdateSpool

    if not carried:
        return updates
    whole = UpdateSpool()
    whole.extend(carried)
    whole.extend(updates)
    return whole


def _require_a_store(opened: "OpenStore", name: str) -> None:
    """Where no scenario has a release: a store that is damaged or came back empty still takes state, a typo does not.

    Content needs a release that it is checked against.
    """
    from contracts.errors import InputError
    from indexing.store_files import FOLDERS

    fault = f"--store {name}: no release here"
    root = opened.local.root
    if opened.local is opened and not any((root / folder).is_dir() for folder in FOLDERS):
        raise InputError(f"{fault}, expected a store that `adsieve index publish` filled")
    warn(f"{fault}, so no ad is known to it; states are taken all the same")


def _set_aside(opened: "OpenStore") -> "list[Update]":
    """Make room for another log; returns what it begins with."""
    from contracts.errors import InputError
    from indexing.update_salvage import stops_left

    if opened.local is not opened and opened.update_log().id is not None:
        raise InputError(
            "--new-log: the log in Redis is not lost, this host has a copy of it; expected a directory store, or Redis "
            "where no host has one any more"
        )
    aside = opened.update_log().set_aside() if opened.local is opened else None
    stops = stops_left(aside, opened.local.root, now_us=_now_us())
    kept = f"; the one before is in {aside}" if aside is not None else ""
    print(f"another log is begun, with {len(stops)} takedowns and used-up budgets{kept}", file=sys.stderr)
    return stops


def _from_files(files: list[str], checks: "ContentChecks") -> "Iterator[tuple[str, Update]]":
    from contracts.errors import InputError
    from indexing.update_input import read_lines
    from indexing.update_parquet import read_parquet

    now = _now_us()
    for name in files:
        if name == "-":
            yield from read_lines(sys.stdin.buffer, source="standard input", now_us=now)
        elif not Path(name).is_file():
            raise InputError(f"{name}: no such file, expected JSON Lines or Parquet")
        elif _is_parquet(Path(name)):
            yield from checks.of_served(read_parquet(Path(name), checks.left_out))
        else:
            with open(name, "rb") as lines:
                yield from read_lines(lines, source=name, now_us=now)


def _from_options(given: dict[str, list[str]]) -> "Iterator[tuple[str, Update]]":
    from indexing.update_input import update_of

    now = _now_us()
    for option in ("takedown", "restore"):
        for ad_id in given[option]:
            data = {"ad_id": ad_id, "takedown": option == "takedown"}
            yield f"--{option}", update_of(data, where=f"--{option}", now_us=now)
    for option in ("status", "bid", "budget"):
        for text in given[option]:
            ad_id, value = _split(option, text)
            data = {"ad_id": ad_id, option: value}
            yield f"--{option}", update_of(data, where=f"--{option} {text}", now_us=now)


def _split(option: str, text: str) -> tuple[str, str | float | None]:
    """Ad and value; the last sign of equality divides them, since an id may hold one."""
    from contracts.errors import InputError

    ad_id, sign, value = text.rpartition("=")
    if not sign or not value:
        raise InputError(f"--{option} {text}: expected AD=VALUE")
    if option == "status":
        return ad_id, value
    if value == "none":
        return ad_id, None
    try:
        return ad_id, float(value)
    except ValueError:
        raise InputError(f"--{option} {text}: expected a number or none after the last =, got {value!r}") from None


def _is_parquet(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def _now_us() -> int:
    import time

    return time.time_ns() // 1000
