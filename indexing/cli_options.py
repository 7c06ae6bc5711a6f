"""Options that commands of ``adsieve index`` share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from contracts.errors import InputError
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


def opened_store(store: str, local: Path | None) -> "OpenStore":
    """The store of a command, with what others published; what of that is damaged or out of reach is told.

    What must reach a Redis server fails later; what is only read is read from the mirror.
    """
    from contracts.errors import AdsieveError, InputError
    from indexing.stores import open_store

    found = open_store(store, local=local)
    try:
        found.refresh()
    except InputError:
        raise
    except AdsieveError as error:
        typer.echo(f"warning: {error}", err=True)
    return found


def unknown_scenario(store: "OpenStore", scenario: str) -> "InputError":
    """What to raise where a scenario has no release."""
    from contracts.config_errors import one_of
    from contracts.errors import InputError

    known = store.scenarios()
    expected = f"expected {one_of(known)}" if known else "the store holds no release yet"
    return InputError(f"--scenario {scenario}: has no release in {store.local.root}; {expected}")
