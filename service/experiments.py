"""A/B and shadow: a second release of a scenario, for a share of the users, or only to be compared with the first.

Which release is second is configuration (``ADSIEVE_AB``, ``ADSIEVE_SHADOW``): the id of one that the store keeps, or
``previous``, the one that a rollback would lead to. It is loaded, verified and brought up to date beside the first.
"""

from collections.abc import Mapping

import xxhash

from contracts.errors import AdsieveError, InputError
from contracts.release import Release
from indexing.store import DirectoryStore
from indexing.store_recovery import readable_releases
from service.api import RankRequest
from service.releases import Snapshot
from service.routing import AUTO
from service.settings import ShadowRelease, Split

FIRST, SECOND = "a", "b"
PREVIOUS = "previous"

_SEED = 0xAB
"""Of the hash that splits users: not that of any other split."""


def second_release(store: DirectoryStore, scenario: str, wanted: str) -> Release:
    """The release that a setting names.

    Raises:
        InputError: The store keeps none of this name, or no previous one.
    """
    if wanted != PREVIOUS:
        try:
            return store.release(scenario, wanted)
        except AdsieveError:
            known = readable_releases(store.root, scenario)
            if wanted in known:
                raise
            message = f"scenario {scenario!r} has no release {wanted!r}; it has: {', '.join(known) or 'none'}"
            raise InputError(message) from None
    names = store.names(scenario)
    if len(names) < 2:
        has = f"it has: {', '.join(names) or 'none'}"
        raise InputError(f"scenario {scenario!r} has no previous release to be its second one; {has}")
    return store.release(scenario, names[1])


def split_users(snapshot: Snapshot, request: RankRequest, splits: Mapping[str, Split]) -> tuple[Snapshot, str | None]:
    """The snapshot that ranks a request, and the arm that its answer names.

    A user stays in the same arm as long as the setting stands. The arm is None where no scenario of the request has a
    split; with several scenarios it names each, such as ``shopping=b,standard=a``.
    """
    concerned = sorted(splits) if request.scenario == AUTO else [request.scenario]
    arms, releases = {}, dict(snapshot.releases)
    for scenario in concerned:
        split, second = splits.get(scenario), snapshot.arms.get(scenario)
        if split is None or scenario not in releases:
            continue
        is_second = second is not None and _is_in_second(request, scenario, split)
        arms[scenario] = SECOND if is_second else FIRST
        if is_second and second is not None:
            releases[scenario] = second
    if not arms:
        return snapshot, None
    arm = arms[request.scenario] if request.scenario in arms else ",".join(f"{name}={arms[name]}" for name in arms)
    return Snapshot(releases), arm


def is_shadowed(request_id: str, shadow: ShadowRelease) -> bool:
    """Whether a request is one of the share that the shadow ranks too."""
    return _uniform(f"shadow\0{shadow.release}\0{request_id}") < shadow.share


def _is_in_second(request: RankRequest, scenario: str, split: Split) -> bool:
    user = request.query.get(split.key)
    if user is None:
        return False
    return _uniform(f"{scenario}\0{split.release}\0{user}") < split.share


def _uniform(text: str) -> float:
    return xxhash.xxh64_intdigest(text.encode(errors="replace"), _SEED) / 2**64
