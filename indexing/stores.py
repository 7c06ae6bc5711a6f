"""What a store of releases is, and how one is opened: a directory, or Redis with a directory as its local mirror."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from contracts.console import shown_store
from contracts.errors import ArtifactError, InputError
from contracts.release import Judgement, Release, UpdatePosition
from indexing.prune import Pruned
from indexing.store import DirectoryStore
from indexing.store_files import Pointer, ReleasePaths
from indexing.update_log import UpdateLog
from indexing.update_record import Updates

SCHEMES = ("redis://", "rediss://", "unix://")


class Store(Protocol):
    """Releases of several scenarios, each with a pointer to the one that serves, and the log of updates.

    What each method does and raises is told by :class:`indexing.store.DirectoryStore`. Reading never waits for a
    publisher. A store of several hosts is read from its local mirror, which ``refresh`` brings up to date.
    """

    @property
    def local(self) -> DirectoryStore:
        """Where readers map files: the store itself where it is a directory, else its mirror."""
        ...

    def refresh(self) -> None:
        """Bring what others published into ``local``: parts, verified, before the pointers to them; then updates."""
        ...

    def lost(self) -> Sequence[str]:
        """Scenarios that ``local`` has releases of, and what it mirrors has lost them."""
        ...

    def doubt(self, release: Release) -> None:
        """Tell that a part of a release could not be read: the next ``refresh`` brings it anew where it is damaged."""
        ...

    def publish(
        self,
        *,
        two_tower: Path,
        heavy: Path | None,
        index: Path,
        metrics: Mapping[str, float] | None = None,
        judgement: Judgement | None = None,
    ) -> Release: ...

    def scenarios(self) -> list[str]: ...

    def current(self, scenario: str) -> Release | None: ...

    def list(self, scenario: str) -> list[Release]: ...

    def names(self, scenario: str) -> Sequence[str]: ...

    def release(self, scenario: str, name: str) -> Release: ...

    def pointer(self, scenario: str) -> Pointer | None: ...

    def paths(self, release: Release) -> ReleasePaths: ...

    def rollback(self, scenario: str, to: str | None = None, *, current: str | None = None) -> Release: ...

    def pin(self, scenario: str, release_id: str) -> None: ...

    def unpin(self, scenario: str, release_id: str) -> None: ...

    def prune(self, keep: int = 3, *, dry_run: bool = False) -> Pruned: ...

    def update_log(self) -> UpdateLog: ...

    def append_updates(self, updates: Updates) -> UpdatePosition: ...

    def trace_of_log(self) -> str | None: ...


def open_store(spec: str | Path, *, local: Path | None = None) -> Store:
    """Open a store.

    Args:
        spec: A directory, or the URL of a Redis server: ``redis://``, ``rediss://`` with TLS, ``unix://``.
        local: Directory of the mirror of a Redis store; by default one in the user's cache, named after the URL.

    Raises:
        InputError: A URL of another kind.

    Example:
        >>> open_store("store").local.root
        PosixPath('store')
    """
    text = str(spec)
    if text.startswith(SCHEMES):
        from indexing.redis_store import RedisStore

        return RedisStore(text, local or default_mirror(text))
    if "://" in text:
        raise InputError(f"--store {text!r}: expected a directory or a URL that begins with {', '.join(SCHEMES)}")
    return DirectoryStore(Path(text))


def pull_again(store: Store) -> None:
    """Bring what serves into the mirror anew where its files are not what they were: of a mirror that cannot be read.

    Raises:
        RedisError: Redis cannot be reached.
        ArtifactError: Something in Redis is damaged too.
    """
    for scenario in store.scenarios():
        with suppress(ArtifactError):
            release = store.current(scenario)
            if release is not None:
                store.doubt(release)
    store.refresh()


def default_mirror(url: str) -> Path:
    """Directory of the mirror of a Redis store; the password is no part of its name."""
    named = shown_store(url)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "adsieve" / hashlib.sha256(named.encode()).hexdigest()[:16]
