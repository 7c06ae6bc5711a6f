"""``adsieve index build``."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.console import Json, print_json, utc_time
from indexing.cli_options import Heavy, TwoTower

if TYPE_CHECKING:
    from indexing.config import IndexConfig


def build(
    ads: Annotated[str, typer.Option(help="Ads dataset: a directory, a Parquet file, or a glob in quotes.")],
    two_tower: TwoTower,
    out: Annotated[Path, typer.Option(help="Directory to create for the index.")],
    heavy: Heavy = None,
    as_of: Annotated[
        datetime | None,
        typer.Option(
            parser=utc_time,
            metavar="TIME",
            help="Build the catalogue as it was at this moment, such as 2026-03-01T00:00:00Z. Without it, the latest "
            "row of each ad counts, whatever the clock says.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of index settings; the options below take precedence.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Precision of the vectors: fp16 (the default) or fp32; biases are always fp32.")
    ] = None,
    max_dropped_share: Annotated[
        float | None,
        typer.Option(help="Fail when more ads than this share hold NaN, infinity or invalid values [.01]."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Ads that are embedded at once [1024].")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the pin tower [2].")] = None,
    json: Json = False,
) -> None:
    """Embed the catalogue with a bundle's pin tower, in bounded memory, into an index that appears whole or not at all.

    The latest row of each ad of the bundle's scenario is indexed. A column that a model was trained on and the
    catalogue lacks stops the build; single bad ads are dropped and counted.
    """
    import msgspec

    from indexing.nightly import build_index

    settings = {
        "precision": precision,
        "max_dropped_share": max_dropped_share,
        "batch_size": batch_size,
        "threads": threads,
    }
    manifest = build_index(
        ads=ads,
        two_tower=two_tower,
        heavy=heavy,
        out=out,
        config=_config(config, {name: value for name, value in settings.items() if value is not None}),
        as_of=as_of,
    )
    if json:
        summary = {name: value for name, value in msgspec.to_builtins(manifest).items() if name != "files"}
        print_json({"path": str(out), **summary})
        return
    dropped = sum(manifest.dropped.values())
    print(f"{out}: {manifest.version}, {manifest.num_ads:,} ads as of {manifest.watermark}, {dropped:,} dropped")
    for fault, count in manifest.faults.items():
        print(f"  {count:,} ads: {fault}")
    for model, coverage in manifest.coverage.items():
        for what, counts in (("missing", coverage["missing"]), ("out of vocabulary", coverage["out_of_vocabulary"])):
            shares = [f"{name} {count / coverage['rows']:.1%}" for name, count in counts.items() if count]
            if shares:
                print(f"  {model} {what}: {', '.join(shares)}")


def _config(path: Path | None, settings: dict[str, object]) -> "IndexConfig":
    from contracts.config import convert, read_data
    from contracts.errors import ConfigError
    from indexing.config import IndexConfig

    written = {} if path is None else read_data(path)
    if not isinstance(written, dict):
        raise ConfigError(f"{path}: expected a mapping of index settings, got {type(written).__name__}")
    return convert({**written, **settings}, IndexConfig, source=str(path or "options"))
