"""``adsieve index build``."""

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from contracts.console import Json, print_json, shown_store, utc_time, warn
from indexing.cli_options import Heavy, Local, TwoTower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from contracts.release import IndexManifest
    from indexing.config import IndexConfig
    from indexing.nightly import EmbedBatches
    from indexing.update_log import UpdateLog

Ads = Annotated[
    list[str],
    typer.Option(
        metavar="PATH", help="Ads dataset: a directory, a Parquet file, or a glob in quotes; several make one dataset."
    ),
]
UpdatesStore = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="DIRECTORY|URL",
        envvar="ADSIEVE_STORE",
        help="Store whose updates of the day are merged; without it, none are.",
    ),
]


class _Parts(TypedDict):
    """Paths of the bundles."""

    two_tower: Path
    heavy: Path | None


def build(
    ads: Ads,
    two_tower: TwoTower,
    out: Annotated[Path, typer.Option(help="Directory to create for the index.")],
    heavy: Heavy = None,
    store: UpdatesStore = None,
    local: Local = None,
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
        str | None, typer.Option(help="Precision of the vectors: fp16 (the default), fp32 or int8; biases are fp32.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="What runs the pin tower; auto (the default) takes the fastest that keeps the parity rows."),
    ] = None,
    max_dropped_share: Annotated[
        float | None,
        typer.Option(help="Fail when more ads than this share hold NaN, infinity or invalid values [.01]."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Ads that are read and encoded at once [16384].")] = None,
    threads: Annotated[int | None, typer.Option(help="Batches that are embedded at once [2].")] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run the pin towers as actors of Ray Data; see requirements/ray.txt.")
    ] = False,
    ray_address: Annotated[
        str | None,
        typer.Option(help="With --ray: a running cluster, as `ray.init` takes it; without it, one starts here."),
    ] = None,
    ray_actors: Annotated[int, typer.Option(min=1, help="With --ray: pin towers, each on one CPU.")] = 2,
    json: Json = False,
) -> None:
    """Embed the catalogue with a bundle's pin tower, in bounded memory, into an index that appears whole or not at all.

    The latest row of each ad of the bundle's scenario is indexed. A column that a model was trained on and the
    catalogue lacks stops the build; single bad ads are dropped and counted. A build that was killed goes on when the
    same command is run again.
    """
    import time

    from indexing.heap import keep_freed_memory
    from indexing.nightly import run_build
    from indexing.pipeline import embed_batches

    settings = {
        "precision": precision,
        "engine": engine,
        "max_dropped_share": max_dropped_share,
        "batch_size": batch_size,
        "threads": threads,
    }
    chosen = _config(config, {name: value for name, value in settings.items() if value is not None})
    parts: _Parts = {"two_tower": two_tower, "heavy": heavy}
    updates, warnings = updates_of(store, local)
    embed = _on_ray(parts, chosen.precision, ray_address, ray_actors) if ray else embed_batches
    begin = time.monotonic()
    keep_freed_memory()
    built = run_build(ads=ads, **parts, out=out, config=chosen, as_of=as_of, updates=updates, embed=embed)
    summary = build_summary(out, built.manifest, time.monotonic() - begin, built.num_resumed)
    summary["warnings"] += warnings
    if json:
        print_json(summary)
    else:
        print_summary(built.manifest, summary)


def updates_of(store: str | None, local: Path | None) -> "tuple[UpdateLog | None, list[str]]":
    """The log of updates of a store, with what others appended, and what is amiss with it, which is told at once.

    Raises:
        InputError: A directory that is no store.
    """
    from indexing.cli_options import asked_store
    from indexing.update_warnings import damage

    if store is None:
        return None, []
    opened, mirror = asked_store(store, local)
    log = opened.update_log()
    is_empty = not opened.scenarios() and log.manifest() is None
    warnings = [] if mirror is None else [f"--store: {mirror}"]
    warnings += _of_empty(store, opened.local.root) if is_empty else damage(log)
    for warning in warnings:
        warn(warning)
    return log, warnings


def _of_empty(store: str, root: Path) -> list[str]:
    """What to tell of a store without releases and updates: right before the first publish, and a typo later."""
    from contracts.errors import InputError
    from indexing.store_files import foreign

    found = foreign(root)
    if "://" not in store and found:
        raise InputError(
            f"--store {store}: holds {', '.join(found[:3])} and is no store; expected a directory that `adsieve index "
            "publish` filled, or one that it is still to make"
        )
    return [f"--store {shown_store(store)}: holds no release and no updates yet, so none are merged"]


def build_summary(out: Path, manifest: "IndexManifest", seconds: float, num_resumed: int = 0) -> dict[str, Any]:
    """The manifest of a build but for its files, and what the job took."""
    import msgspec

    from indexing.peak_memory import peak_memory_bytes

    num_read = manifest.num_ads + sum(manifest.dropped.values()) - num_resumed
    told = {name: value for name, value in msgspec.to_builtins(manifest).items() if name != "files"}
    return {
        "path": str(out),
        **told,
        "bytes": sum(entry.bytes for entry in manifest.files.values()),
        "seconds": round(seconds, 3),
        "resumed_ads": num_resumed,
        "ads_per_s": round(num_read / seconds, 1),
        "peak_memory_bytes": peak_memory_bytes(),
    }


def print_summary(manifest: "IndexManifest", summary: dict[str, Any]) -> None:
    """What a build made, in words."""
    dropped = sum(manifest.dropped.values())
    path = summary["path"]
    print(f"{path}: {manifest.version}, {manifest.num_ads:,} ads as of {manifest.watermark}, {dropped:,} dropped")
    print(
        f"  {summary['seconds']:.1f} s, {summary['ads_per_s']:,.0f} ads/s by {manifest.engine}, "
        f"{summary['bytes'] / 1e6:,.1f} MB, at most {summary['peak_memory_bytes'] / 1e6:,.0f} MB of memory"
    )
    for line in retrieval_lines(manifest.retrieval, manifest.retrieval_recall):
        print(f"  {line}")
    if manifest.updates is not None:
        print(f"  {manifest.catalog['merged']:,} ads from updates up to number {manifest.updates.seq:,}")
    for fault, count in manifest.faults.items():
        print(f"  {count:,} ads: {fault}")
    for model, coverage in manifest.coverage.items():
        for what, counts in (("missing", coverage["missing"]), ("out of vocabulary", coverage["out_of_vocabulary"])):
            shares = [f"{name} {count / coverage['rows']:.1%}" for name, count in counts.items() if count]
            if shares:
                print(f"  {model} {what}: {', '.join(shares)}")
    for warning in manifest.warnings:
        print(f"  warning: {warning}")


def retrieval_lines(
    retrieval: "Mapping[str, Mapping[str, Any]]", recall: "Mapping[str, float] | None" = None
) -> list[str]:
    """One line for each head: how the ads that pay for it are searched; and one of what is found.

    Example:
        >>> heads = {"click": {"kind": "flat", "ads": 1200}, "buy": {"kind": "ivf", "ads": 9, "probes": 2, "lists": 4}}
        >>> for line in retrieval_lines(heads, {"flat": 1.0, "chosen": 0.995, "best": 100, "requests": 32}):
        ...     print(line)
        retrieval of click: flat, 1,200 ads
        retrieval of buy: ivf, 9 ads, 2 of 4 lists
        retrieval finds .9950 of the 100 best ads by utility, all flat 1.0000, of 32 saved requests
    """
    lines = []
    for head, told in retrieval.items():
        lists = f", {told['probes']} of {told['lists']} lists" if "lists" in told else ""
        lines.append(f"retrieval of {head}: {told['kind']}, {told['ads']:,} ads{lists}")
    if recall and "chosen" in recall:
        found, flat = (f"{recall[name]:.4f}".removeprefix("0") for name in ("chosen", "flat"))
        lines.append(
            f"retrieval finds {found} of the {recall['best']:.0f} best ads by utility, all flat {flat}, "
            f"of {recall['requests']:.0f} saved requests"
        )
    return lines


def _on_ray(parts: "_Parts", precision: str, address: str | None, actors: int) -> "EmbedBatches":
    from indexing.ray_embed import RayCluster, embed_batches_on_ray

    return partial(embed_batches_on_ray, **parts, precision=precision, cluster=RayCluster(address, actors))


def _config(path: Path | None, settings: dict[str, object]) -> "IndexConfig":
    from contracts.config import convert, read_data
    from contracts.errors import ConfigError
    from indexing.config import IndexConfig

    written = {} if path is None else read_data(path)
    if not isinstance(written, dict):
        raise ConfigError(f"{path}: expected a mapping of index settings, got {type(written).__name__}")
    return convert({**written, **settings}, IndexConfig, source=str(path or "options"))
