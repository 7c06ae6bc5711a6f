"""``adsieve index export``."""

from pathlib import Path
from typing import Annotated

import typer

from contracts.console import Json, print_json
from indexing.cli_options import scenario_names


def export(
    out: Annotated[
        Path, typer.Option(help="File to create where the name ends with .parquet, else a directory of files.")
    ],
    index: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Index that `adsieve index build` made.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(envvar="ADSIEVE_STORE", help="Without --index: the store whose current release is exported."),
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(autocompletion=scenario_names, help="With --store: the scenario.")
    ] = None,
    local: Annotated[
        Path | None, typer.Option(envvar="ADSIEVE_LOCAL", help="Mirror directory of a store that is a URL.")
    ] = None,
    json: Json = False,
) -> None:
    """Write ids, embeddings and biases as Parquet for another search engine, with the versions in the footer.

    The index is checked first, every byte. What updates changed through the day is not part of it.
    """
    from indexing.export import export_index
    from indexing.index import Index

    exported = export_index(Index.open(index or _of_store(store, scenario, local)), out)
    if json:
        print_json(
            {
                "path": str(exported.path),
                "index": exported.index,
                "num_ads": exported.num_ads,
                "num_files": exported.num_files,
                "bytes": exported.num_bytes,
            }
        )
    else:
        files = f"{exported.num_files:,} file{'s' * (exported.num_files != 1)}"
        print(f"{out}: {exported.index}, {exported.num_ads:,} ads in {files}, {exported.num_bytes / 1e6:,.1f} MB")


def _of_store(store: str | None, scenario: str | None, local: Path | None) -> Path:
    from contracts.errors import InputError
    from indexing.cli_options import opened_store, unknown_scenario

    if store is None or scenario is None:
        raise InputError("expected --index, or --store and --scenario")
    opened = opened_store(store, local)
    release = opened.current(scenario)
    if release is None:
        raise unknown_scenario(opened, scenario)
    return opened.paths(release).index
