"""``adsieve index reencode``."""

from pathlib import Path
from typing import Annotated

import typer

from contracts.console import Json, print_json
from indexing.cli_build import Ads, UpdatesStore, build_summary, print_summary, updates_of
from indexing.cli_options import Local


def reencode(
    index: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Index whose heavy block is made anew.")],
    heavy: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Heavy bundle that will read the block.")],
    ads: Ads,
    out: Annotated[Path, typer.Option(help="Directory to create for the new index.")],
    store: UpdatesStore = None,
    local: Local = None,
    json: Json = False,
) -> None:
    """Make only the heavy block of an index anew, for another heavy ranker; all other files are shared.

    The dataset is that of the build; rows that came since do not matter.
    """
    import time

    from indexing.reencode import reencode_index

    updates, warnings = updates_of(store, local)
    begin = time.monotonic()
    manifest = reencode_index(index=index, heavy=heavy, ads=ads, out=out, updates=updates)
    summary = build_summary(out, manifest, time.monotonic() - begin)
    summary["warnings"] += warnings
    if json:
        print_json(summary)
    else:
        print_summary(manifest, summary)
