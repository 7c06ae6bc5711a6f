"""Options that commands of ``adsieve index`` share."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.console import shown_store, warn

if TYPE_CHECKING:
    from contracts.errors import AdsieveError, InputError
    from indexing.stores import Store as OpenStore

TwoTower = Annotated[
    Path, typer.Option(exists=True, file_okay=False, help="Two-tower bundle, as `adsieve distill publish` seals it.")
]
Heavy = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Heavy bundle, as `adsieve heavy export` seals it. Without it the release ends with the towers.",
    ),
]


_PUBLISH = "publish a release: `adsieve index publish --help`"


def _directory_or_url(value: str) -> str:
    path = Path(value)
    if "://" not in value and path.exists() and not path.is_dir():
        raise typer.BadParameter(f"Directory {value!r} is a file.")
    return value


Store = Annotated[
    str,
    typer.Option(
        callback=_directory_or_url,
        metavar="DIRECTORY|URL",
        envvar="ADSIEVE_STORE",
        help="What holds the releases, and `adsieve serve` reads: a directory, or Redis as redis://, rediss:// or "
        "unix://. A password is best given as ADSIEVE_REDIS_PASSWORD.",
    ),
]
Local = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        envvar="ADSIEVE_LOCAL",
        help="Of a Redis store, the directory that mirrors it on this host; by default one in the user's cache.",
    ),
]


def scenario_names(context: typer.Context, incomplete: str) -> list[str]:
    """For a shell, the scenarios that have a release in the store that a command names."""
    names = known_scenarios(context.params.get("store"))
    return [name for name in names if name.startswith(incomplete)]


def release_ids(context: typer.Context, incomplete: str) -> list[str]:
    """For a shell, the releases of the store that a command names."""
    from contracts.errors import AdsieveError
    from indexing.store import DirectoryStore

    store = context.params.get("store")
    try:
        kept = DirectoryStore(_directory(store))
        found = [release.release_id for name in known_scenarios(store) for release in kept.list(name)]
    except (AdsieveError, OSError):
        return []
    return [release for release in found if release.startswith(incomplete)]


def known_scenarios(store: str | None) -> list[str]:
    """Scenarios that have a release in a directory, or in the mirror of a server, which is not asked.

    Args:
        store: As a command was given it; None for the usual one.
    """
    from contracts.errors import AdsieveError
    from indexing.store import DirectoryStore

    try:
        return DirectoryStore(_directory(store)).scenarios()
    except (AdsieveError, OSError):
        return []


def _directory(store: str | None) -> Path:
    from indexing.stores import open_store

    return open_store(store or os.environ.get("ADSIEVE_STORE") or "store").local.root


@dataclass(frozen=True)
class FromMirror:
    """A Redis server could not be asked, so that a mirror stands in for it.

    Args:
        root: Directory of the mirror.
        as_of: When it was last in step with the server, ISO 8601; None where that is not known.
        reason: Why the server could not be asked.
    """

    root: Path
    as_of: str | None
    reason: str

    @property
    def place(self) -> str:
        """What is read, in words."""
        return f"the mirror of this host, {self.root}, as of {self.as_of or 'an unknown time'}"

    def __str__(self) -> str:
        return f"{self.reason}; what follows is from {self.place}"


def asked_store(store: str, local: Path | None) -> "tuple[OpenStore, FromMirror | None]":
    """The store of a command that reads, with what others published, or its mirror where the server is out of reach.

    What is damaged of what others published is told.

    Raises:
        RedisError: The server is out of reach and the mirror holds nothing, so that nothing can be said of the store.
    """
    from contracts.errors import AdsieveError, ArtifactError, InputError
    from indexing.stores import open_store

    found = open_store(store, local=local)
    try:
        found.refresh()
    except InputError:
        raise
    except ArtifactError as error:
        warn(str(error))
    except AdsieveError as error:
        if not found.scenarios() and found.update_log().manifest() is None:
            raise
        return found, from_mirror(found, error)
    return found, None


def from_mirror(store: "OpenStore", error: "AdsieveError") -> FromMirror:
    """What stands in for a store that ``error`` keeps out of reach."""
    from indexing.redis_origin import in_step_at

    at = in_step_at(store.local.root)
    return FromMirror(store.local.root, None if at is None else at.isoformat(), str(error))


def opened_store(store: str, local: Path | None) -> "OpenStore":
    """As :func:`asked_store`; that a mirror stands in is told."""
    found, mirror = asked_store(store, local)
    if mirror is not None:
        warn(str(mirror))
    return found


def store_to_change(store: str, local: Path | None) -> "OpenStore":
    """The store of a command that changes it, with what others published; what of that is damaged is told.

    Raises:
        RedisError: The server is out of reach.
    """
    from contracts.errors import AdsieveError

    found, mirror = asked_store(store, local)
    if mirror is not None:
        raise AdsieveError(mirror.reason)
    return found


def unknown_scenario(store: "OpenStore", scenario: str) -> "InputError":
    """What to raise where a scenario has no release."""
    from contracts.config_errors import one_of
    from contracts.errors import InputError
    from contracts.names import shortened

    known = store.scenarios()
    expected = f"expected {one_of(known)}" if known else "the store holds no release yet"
    mirror = "" if store.local is store else "the mirror "
    step = f"`adsieve index list --store {shown_store(store.local.root)}` shows what serves" if known else _PUBLISH
    return InputError(
        f"--scenario {shortened(scenario)}: has no release in {mirror}{store.local.root}; {expected}", next_step=step
    )
