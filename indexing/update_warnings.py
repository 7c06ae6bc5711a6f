"""What ``adsieve index update`` tells of updates that may not do what was meant, and of a log that lost something."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from contracts.errors import ArtifactError
from contracts.names import shortened
from indexing.index import Index
from indexing.lost_log import trace_of_log
from indexing.overlay_effect import NEVER
from indexing.stores import Store
from indexing.update_log import UpdateLog
from indexing.update_manifest import MANIFEST, WAY_OUT
from indexing.update_record import Updates
from indexing.update_survey import brought, survey

DAY_US = 86_400_000_000
GRACE_S = 2.0
"""How long a running host has to bring back a log that Redis lost."""

_SHOWN, _BLOCK = 5, 65_536
_UNREADABLE = (ArtifactError, OSError, ValueError)


def require_no_lost_log(store: Store) -> None:
    """Refuse to begin a log where the store had one that is gone; repair a damaged one.

    Raises:
        ArtifactError: Names the log that is missed, what tells of it, and the way out; or the log cannot be repaired.
    """
    log = store.local.update_log()
    if store.local is store:
        log.repair()
    elif log.id is None and store.trace_of_log() is not None:
        time.sleep(GRACE_S)  # a running host brings back what Redis lost
        store.refresh()
    trace = None if log.id is not None or (log.directory / MANIFEST).exists() else store.trace_of_log()
    if trace is not None:
        raise ArtifactError(
            f"{log.directory}: {trace}; restore the directory from a backup, or give --new-log to begin another log, "
            "and say again what is taken down"
        )


@dataclass(frozen=True)
class _Content:
    """What is asked of content: whose, of which scenario, from when on."""

    ad_id: str
    scenario: str
    valid_from: int


def warnings(store: Store, updates: Updates, *, now_us: int) -> Iterator[str]:
    """What to tell before updates are appended: damaged lines, ads that nobody knows, content that lies far ahead."""
    log = store.local.update_log()
    yield from _damaged_lines(log)
    contents = [
        _Content(one.ad_id, one.content.scenario, one.content.valid_from) for one in updates if one.content is not None
    ]
    ids = sorted(_in_no_release(store, updates) - {one.ad_id for one in contents})
    earlier = brought(survey(log.directory), {*ids, *(one.ad_id for one in contents)})
    ids = sorted(set(ids) - earlier.keys())
    if ids:
        count = len({update.ad_id for update in updates})
        yield f"{len(ids)} of {count} ads are in no serving release: {_some(ids)}"
    lists = [ad_id for ad_id in ids if "," in ad_id]
    if lists:
        yield f"a comma does not part ads, give each with an option of its own: {_some(lists)}"
    late = _not_later(store, contents, earlier)
    if late:
        yield f"{len(late)} contents are not later than what the ad has and do not count: {_some(late)}"
    ahead = [one.ad_id for one in contents if one.valid_from > now_us + DAY_US]
    if ahead:
        yield f"content of {len(ahead)} ads is valid from more than a day ahead, and counts at once: {_some(ahead)}"


def _not_later(store: Store, contents: Sequence[_Content], earlier: dict[str, int]) -> list[str]:
    """Ads whose content does not count: it is not later than the serving index's, the log's or a line's before it."""
    has = _valid_from_in_release(store, contents)
    latest, late = dict(earlier), list[str]()
    for one, served in zip(contents, has, strict=True):
        if one.valid_from <= max(served, latest.get(one.ad_id, served)):
            late.append(one.ad_id)
        else:
            latest[one.ad_id] = one.valid_from
    return late


def _valid_from_in_release(store: Store, contents: Sequence[_Content]) -> list[int]:
    """``valid_from`` of the ads of updates in what serves the scenario of their content, ``NEVER`` where unknown."""
    found = np.full(len(contents), NEVER)
    scenarios = [one.scenario for one in contents]
    for scenario in sorted(set(scenarios) & set(store.scenarios())):
        places = np.array([place for place, one in enumerate(scenarios) if one == scenario])
        try:
            release = store.current(scenario)
            if release is not None:
                index = Index.open(store.paths(release).index, verify=False)
                rows = index.id_table.lookup([contents[place].ad_id for place in places])
                found[places[rows >= 0]] = index.valid_from[rows[rows >= 0]]
        except _UNREADABLE:
            continue
    return found.tolist()


def damage(log: UpdateLog) -> Iterator[str]:
    """Tells of a log that is gone or has damaged lines; an ArtifactError where it cannot be read at all."""
    yield from _damaged_lines(log)
    if log.id is None and (trace := trace_of_log(log.directory.parent)) is not None:
        yield f"{log.directory}: {trace}; restore it, or begin another with `adsieve index update --new-log`"


def _damaged_lines(log: UpdateLog) -> Iterator[str]:
    try:
        found = survey(log.directory)
    except FileNotFoundError as error:
        raise ArtifactError(f"{error.filename}: a segment of the log of updates is missing; {WAY_OUT}") from None
    if found.damaged:
        yield f"{found.where}: {found.damaged} damaged lines in all, their updates are lost: say them again"


def _in_no_release(store: Store, updates: Updates) -> set[str]:
    """Ads of state alone that no serving release knows; none where one cannot be read, which must stop no update."""
    try:
        releases = [store.current(scenario) for scenario in store.scenarios()]
        tables = [
            Index.open(store.paths(release).index, verify=False).id_table for release in releases if release is not None
        ]
        unknown: set[str] = set()
        of_states = (update.ad_id for update in updates if update.content is None)
        while ids := list(islice(of_states, _BLOCK)):
            for table in tables:
                rows = table.lookup(ids)
                ids = [ad_id for ad_id, row in zip(ids, rows.tolist(), strict=True) if row < 0]
            unknown.update(ids)
    except _UNREADABLE:
        return set()
    return unknown


def _some(ids: Sequence[str]) -> str:
    return ", ".join(map(shortened, ids[:_SHOWN])) + (", ..." if len(ids) > _SHOWN else "")
