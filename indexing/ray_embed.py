"""The pin towers of one build on a Ray cluster: actors read and embed shards of the catalogue, the driver writes.

The batches are those that :func:`indexing.pipeline.embed_batches` gives, cut at the same rows and in the same order, by
the engine that the driver chose, so the index is the same file by file. Every host must reach the ads and the bundles
under the driver's paths. Ads of the log of updates are few: the driver embeds them itself.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.dataset as ds

from contracts.bundle import Bundle, open_bundle
from contracts.errors import AdsieveError, InputError, MismatchError
from indexing.catalog import Catalog
from indexing.embed import AdEmbedder, EmbeddedBatch
from indexing.pipeline import embed_batches
from indexing.precision import num_to_check

BATCHES_PER_SHARD = 32
BLOCK_BYTES = 1 << 20
"""An actor hands over its batches when they are about so large."""
OBJECT_STORE_BYTES = 512 << 20
"""Of a cluster that is started for one build; shards in flight are far smaller."""
_INSTALL = "--ray needs Ray Data: pip install -r requirements/ray.txt"


@dataclass(frozen=True)
class RayCluster:
    """Where the actors run.

    Args:
        address: Of a running cluster, as ``ray.init`` takes it; None starts one on this machine for the build.
        actors: Pin towers at once; each takes one CPU.
    """

    address: str | None = None
    actors: int = 2


def embed_batches_on_ray(
    catalog: Catalog,
    embedder: AdEmbedder,
    columns: Sequence[str],
    batch_size: int,
    skip_rows: int = 0,
    *,
    two_tower: Path,
    heavy: Path | None,
    precision: str,
    cluster: RayCluster,
) -> Iterator[EmbeddedBatch]:
    """Embed the catalogue's ads in their order, by actors.

    The first five arguments are those of ``embed_batches``; the actors take the embedder's engine.

    Args:
        two_tower: Path of the embedder's bundle, on every host.
        heavy: Likewise.
        precision: Of the vectors.
        cluster: Where.

    Raises:
        InputError: Ray is not installed.
        LogError: As ``embed_batches``.
        MismatchError: A host finds another bundle under the same path.
    """
    task = _Task(
        catalog=_of_files(catalog),
        columns=tuple(columns),
        batch_size=batch_size,
        bundles=tuple(_path_and_version(path) for path in (two_tower, heavy) if path is not None),
        precision=precision,
        engine=embedder.engine,
    )
    with _started(cluster) as ray:
        yield from _from_actors(ray, task, shards(catalog, batch_size, skip_rows), cluster.actors)
    yield from embed_batches(catalog, embedder, columns, batch_size, max(skip_rows, catalog.counts["kept"]))


def shards(
    catalog: Catalog, batch_size: int, skip_rows: int = 0, *, batches: int = BATCHES_PER_SHARD
) -> list[tuple[int, int]]:
    """Cut the dataset's part of a catalogue at the ends of batches, each of which is of one file.

    Returns:
        The first ad of each shard, and its number of batches.
    """
    found, first = [], 0
    for num_kept in _kept_by_file(catalog):
        start, stop = max(first, skip_rows), first + num_kept
        for at in range(start, stop, batches * batch_size):
            found.append((at, min(batches, -(-(stop - at) // batch_size))))
        first = stop
    return found


def _kept_by_file(catalog: Catalog) -> Iterator[int]:
    start = 0
    for fragment in catalog.dataset.get_fragments():
        stop = start + fragment.count_rows()
        bits = np.unpackbits(catalog.kept[start // 8 : -(-stop // 8)], bitorder="little")
        yield int(bits[start % 8 :][: stop - start].sum())
        start = stop


@dataclass(frozen=True)
class _Task:
    """What an actor needs to know. ``bundles`` are path and version of the two-tower's and, if any, the heavy one's."""

    catalog: Catalog
    columns: tuple[str, ...]
    batch_size: int
    bundles: tuple[tuple[str, str], ...]
    precision: str
    engine: str


class _PinTowers:
    """An actor: embeds shards one after another, on one thread."""

    def __init__(self, task: _Task) -> None:
        kinds = ("two_tower", "heavy")
        bundles = [_open(path, kind, version) for kind, (path, version) in zip(kinds, task.bundles, strict=False)]
        heavy = bundles[1] if len(bundles) > 1 else None
        self._task = task
        self._embedder = AdEmbedder(bundles[0], heavy, precision=task.precision, threads=1, engine=task.engine)

    def __call__(self, shard: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        task, start, count = self._task, int(shard["start"][0]), int(shard["batches"][0])
        for table, file in islice(task.catalog.batches(task.columns, task.batch_size, start), count):
            embedded = np.empty(1, object)
            embedded[0] = self._embedder.embed(table, source=file, check=num_to_check(start))
            start += len(table)
            yield {"batch": embedded}


def _path_and_version(path: Path) -> tuple[str, str]:
    return os.path.abspath(path), open_bundle(path, verify=False).manifest.version


def _open(path: str, kind: Any, version: str) -> Bundle:
    bundle = open_bundle(Path(path), kind=kind)
    if bundle.manifest.version != version:
        raise MismatchError(f"{path}: this host has {bundle.manifest.version}, the driver has {version}")
    return bundle


def _of_files(catalog: Catalog) -> Catalog:
    """The dataset's part of a catalogue, to be read from any working directory."""
    files = [os.path.abspath(file) for file in catalog.dataset.files]
    dataset = ds.dataset(files, schema=catalog.dataset.schema, format="parquet")
    return replace(catalog, dataset=dataset, kept=np.array(catalog.kept), updates=None)


def _from_actors(ray: ModuleType, task: _Task, found: list[tuple[int, int]], actors: int) -> Iterator[EmbeddedBatch]:
    if not found:
        return
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.target_max_block_size = BLOCK_BYTES
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    items = [{"start": start, "batches": count} for start, count in found]
    embedded = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        _PinTowers,
        fn_constructor_args=(task,),
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=min(actors, len(items))),
        num_cpus=1,
    )
    try:
        for row in embedded.iter_rows():
            yield row["batch"]
    except ray.exceptions.RayError as error:
        raise _own_error(error, ray) from None


def _own_error(error: BaseException, ray: ModuleType) -> BaseException:
    """The error of this program that an actor raised, if that is what failed; Ray wraps it in errors of its own."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, AdsieveError) and not isinstance(inner, ray.exceptions.RayError):
            return inner
        inner = getattr(inner, "cause", None) or inner.__cause__
    return AdsieveError(f"Ray: {error}")


@contextmanager
def _started(cluster: RayCluster) -> Iterator[ModuleType]:
    """Ray, connected; a cluster that was started for this build ends with it."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError(_INSTALL) from error
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if cluster.address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        quiet |= {"num_cpus": cluster.actors, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    ray.init(address=cluster.address or "local", **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()
