"""What ``adsieve index update`` tells of updates that may not do what was meant, and of a log that lost something."""

from collections.abc import Iterator, Sequence

from contracts.artifact import read_manifest
from contracts.errors import ArtifactError
from contracts.release import IndexManifest, Release, UpdatePosition
from indexing.index import Index
from indexing.stores import Store
from indexing.update_log import UpdateLog
from indexing.update_manifest import WAY_OUT
from indexing.update_record import Update
from indexing.update_survey import brought, survey

_DAY_US = 86_400_000_000
_SHOWN = 5


def require_no_lost_log(store: Store) -> None:
    """Refuse to begin a log where an index within reach was built with one that is gone; repair a damaged one.

    Raises:
        ArtifactError: Names the index and the log that is missed, and the way out; or the log cannot be repaired.
    """
    log = store.local.update_log()
    if store.local is not store:  # Redis brings a mirror back
        return
    log.repair()
    if log.end is not None:
        return
    for scenario in store.scenarios():
        for release in store.list(scenario):
            merged = _merged(store, release)
            if merged is not None:
                raise ArtifactError(
                    f"{log.directory}: the log of updates {merged.log}, which index "
                    f"{release.index} holds up to number {merged.seq}, is gone; restore the directory from a backup, "
                    "or give --new-log to begin another log, and say again what is taken down"
                )


def warnings(store: Store, updates: Sequence[Update], *, now_us: int) -> Iterator[str]:
    """What to tell before updates are appended: damaged lines, ads that nobody knows, content that lies far ahead."""
    log = store.local.update_log()
    yield from damage(log)
    found = survey(log.directory)
    unknown = {update.ad_id for update in updates if update.content is None}
    unknown -= {update.ad_id for update in updates if update.content is not None}
    ids = _in_no_release(store, sorted(unknown))
    ids = sorted(set(ids) - brought(found, ids))
    if ids:
        count = len({update.ad_id for update in updates})
        yield f"{len(ids)} of {count} ads are in no serving release: {_some(ids)}"
    ahead = [one.ad_id for one in updates if one.content is not None and one.content.valid_from > now_us + _DAY_US]
    if ahead:
        yield f"content of {len(ahead)} ads is valid from more than a day ahead, and counts at once: {_some(ahead)}"


def damage(log: UpdateLog) -> Iterator[str]:
    """Tells of lines of a log that are damaged; an ArtifactError where it cannot be read at all."""
    try:
        found = survey(log.directory)
    except FileNotFoundError as error:
        raise ArtifactError(f"{error.filename}: a segment of the log of updates is missing; {WAY_OUT}") from None
    if found.damaged:
        yield f"{found.where}: {found.damaged} damaged lines in all, their updates are lost: say them again"


def _in_no_release(store: Store, ids: list[str]) -> list[str]:
    """Which of the ads no serving release knows; none where one cannot be read, which must not keep an update away."""
    try:
        for scenario in store.scenarios():
            release = store.current(scenario)
            if release is not None and ids:
                rows = Index.open(store.paths(release).index, verify=False).id_table.lookup(ids)
                ids = [ad_id for ad_id, row in zip(ids, rows.tolist(), strict=True) if row < 0]
    except ArtifactError:
        return []
    return ids


def _merged(store: Store, release: Release) -> UpdatePosition | None:
    try:
        return read_manifest(store.paths(release).index, IndexManifest).updates
    except ArtifactError:  # it can be neither served nor rolled back to
        return None


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_SHOWN]) + (", ..." if len(ids) > _SHOWN else "")
