"""The nightly job: a catalogue and the bundles that will serve, to one index, in bounded memory and in one step.

Work is done in a hidden directory beside the index and outlives a kill:

    .NAME.work/inputs.json, engine.json   what the job reads, and the engine that it chose
    .NAME.work/plan/                      the catalogue, once it is found (``indexing.plan``)
    .NAME.work/checkpoint.json            how many ads of it are in index/ (``indexing.checkpoint``)
    .NAME.work/index/                     the index; renamed when it is complete
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from contracts.artifact import MANIFEST, READY, finish_directory, write_json
from contracts.bundle import Bundle, open_bundle
from contracts.errors import ArtifactError, InputError, LogError, MismatchError
from contracts.layout import side_layout
from contracts.progress import progress, tell
from contracts.records import open_dataset
from contracts.release import IndexManifest
from indexing.attributes import ATTRIBUTES
from indexing.blocks import BlockWriter
from indexing.catalog import Catalog, input_files
from indexing.checkpoint import Progress, read_checkpoint, write_checkpoint
from indexing.config import IndexConfig
from indexing.embed import AdEmbedder, EmbeddedBatch
from indexing.manifest import index_manifest
from indexing.merge import UpdatesToMerge
from indexing.overlay_content import ContentEmbedder
from indexing.pipeline import embed_batches
from indexing.plan import open_plan, plan_catalog
from indexing.retrieval_build import build_retrieval
from indexing.update_log import UpdateLog
from indexing.work_directory import work_directory

EmbedBatches = Callable[[Catalog, AdEmbedder, Sequence[str], int, int], Iterator[EmbeddedBatch]]
"""As ``indexing.pipeline.embed_batches``: embeds the catalogue's ads, but for some at the beginning, in order."""

Ads = str | Path | Sequence[str | Path]
_FORMAT = 1
"""Of the work directory; another one is begun anew."""


@dataclass(frozen=True)
class Built:
    """A finished index, and how many of the catalogue's ads an earlier run of the job had embedded."""

    manifest: IndexManifest
    num_resumed: int


def build_index(
    *,
    ads: Ads,
    two_tower: Path,
    heavy: Path | None,
    out: Path,
    config: IndexConfig,
    as_of: datetime | None = None,
    updates: UpdateLog | None = None,
) -> IndexManifest:
    """As :func:`run_build`; the manifest, which is also the summary: counts, coverage, faults."""
    return run_build(
        ads=ads, two_tower=two_tower, heavy=heavy, out=out, config=config, as_of=as_of, updates=updates
    ).manifest


def run_build(
    *,
    ads: Ads,
    two_tower: Path,
    heavy: Path | None,
    out: Path,
    config: IndexConfig,
    as_of: datetime | None = None,
    updates: UpdateLog | None = None,
    embed: EmbedBatches = embed_batches,
) -> Built:
    """Build the index of one two-tower bundle, of its scenario's ads, at ``out``.

    Memory does not grow with the catalogue: rows are streamed from the files of ``ads`` to the files of the index. The
    index appears whole or not at all. A job that was killed goes on, when it is run again, after the last ads that it
    had brought to disk, and makes the same index; a job of other inputs begins anew.

    Args:
        ads: The ads dataset, of one place or several: a directory, a file or a glob each.
        two_tower: Bundle whose pin tower embeds the ads.
        heavy: Bundle whose schema encodes the ads for the heavy ranker; None leaves that block out.
        out: Directory to create.
        as_of: Leave out rows that begin later. A moment with a zone.
        updates: Log of updates of the store, to merge.
        embed: Embeds the catalogue.

    Raises:
        InputError: ``out`` exists, another job is making it, or ``as_of`` has no zone.
        LogError: The dataset lacks columns, has wrong types, ties or unknown values, has no ad of the scenario, or more
            than ``config.max_dropped_share`` of its ads cannot be embedded.
        ArtifactError: A bundle is truncated or altered.
        MismatchError: The bundles are not of one scenario.
        AdsieveError: The disk is full; run again with more room, the job goes on.
    """
    bundle = open_bundle(two_tower, kind="two_tower")
    heavy_bundle = open_bundle(heavy, kind="heavy") if heavy is not None else None
    scenario = _scenario(bundle, heavy_bundle)
    until = _micros(as_of)
    dataset = open_dataset(*([ads] if isinstance(ads, str | Path) else ads))
    inputs = _inputs(dataset, bundle, heavy_bundle, config, until, updates)
    with work_directory(out, inputs) as work:
        embedder = _embedder(work, bundle, heavy_bundle, config)
        embedder.check_columns(dataset)
        catalog = open_plan(dataset, work / "plan")
        if catalog is None:
            merge = UpdatesToMerge(updates, ContentEmbedder(embedder), until) if updates is not None else None
            catalog = plan_catalog(dataset, scenario=scenario, as_of=until, directory=work / "plan", updates=merge)
        job = _Job(work, catalog, embedder, bundle, heavy_bundle, config)
        begun = read_checkpoint(work)
        blocks, begun = job.open_blocks(begun)
        done = job.write_blocks(blocks, begun, embed)
        manifest = job.finish(blocks, done)
        finish_directory(job.directory, Path(out).absolute())
    return Built(manifest, begun.num_read)


def _scenario(bundle: Bundle, heavy: Bundle | None) -> str:
    scenario = bundle.manifest.scenario
    if scenario is None:
        raise MismatchError(f"{bundle.path}: a two-tower bundle serves one scenario, this one names none")
    if heavy is not None and heavy.manifest.scenario not in (None, scenario):
        raise MismatchError(
            f"{heavy.path}: heavy bundle of scenario {heavy.manifest.scenario!r}, expected none or {scenario!r}"
        )
    return scenario


def _micros(as_of: datetime | None) -> int | None:
    if as_of is None:
        return None
    if as_of.tzinfo is None:
        raise InputError(f"as_of: expected a time with a zone, such as 2026-03-01T00:00:00Z, got {as_of.isoformat()}")
    return pa.scalar(as_of, pa.timestamp("us", "UTC")).value


def _inputs(
    dataset: ds.Dataset,
    bundle: Bundle,
    heavy: Bundle | None,
    config: IndexConfig,
    as_of: int | None,
    updates: UpdateLog | None,
) -> dict[str, Any]:
    """What tells that an interrupted job was the same. Of the log its name alone: what is merged is in the plan."""
    manifest = updates.manifest() if updates is not None else None
    return {
        "format": _FORMAT,
        "two_tower": bundle.manifest,
        "heavy": heavy.manifest if heavy is not None else None,
        "config": config,
        "as_of": as_of,
        "updates": [updates is not None, manifest.log if manifest is not None else None],
        "files": input_files(dataset),
    }


def _embedder(work: Path, bundle: Bundle, heavy: Bundle | None, config: IndexConfig) -> AdEmbedder:
    """The embedder; its engine is the one that an interrupted job had chosen."""
    path, chosen = work / "engine.json", config.engine
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        chosen = msgspec.json.decode(path.read_bytes(), type=str)
    embedder = AdEmbedder(bundle, heavy, precision=config.precision, threads=config.threads, engine=chosen)
    write_json(path, embedder.engine)
    return embedder


@dataclass(frozen=True)
class _Job:
    """One build, in its work directory."""

    work: Path
    catalog: Catalog
    embedder: AdEmbedder
    bundle: Bundle
    heavy: Bundle | None
    config: IndexConfig

    @property
    def directory(self) -> Path:
        return self.work / "index"

    def open_blocks(self, begun: Progress) -> tuple[BlockWriter, Progress]:
        """The blocks with what is in them; empty ones where the files do not hold what the checkpoint says."""
        try:
            if begun.num_read:
                blocks = self._blocks(begun)
                tell(f"resuming at {begun.num_read:,} of {self.catalog.num_ads:,} ads")
                return blocks, begun
        except (ArtifactError, OSError) as error:
            tell(f"beginning anew, what is left of an earlier run cannot be used: {error}")
        shutil.rmtree(self.directory, ignore_errors=True)
        return self._blocks(Progress()), Progress()

    def _blocks(self, begun: Progress) -> BlockWriter:
        return BlockWriter(
            self.directory,
            self.bundle.schema,
            head_dim=self.embedder.head_dim,
            precision=self.config.precision,
            heavy_layout=side_layout(self.heavy.schema, "ad") if self.heavy is not None else None,
            scratch=self.work / "scratch",
            resume_ads=begun.num_ads,
            resume_advertisers=begun.num_advertisers,
        )

    def write_blocks(self, blocks: BlockWriter, done: Progress, embed: EmbedBatches) -> Progress:
        """Stream the rest of the catalogue into the blocks."""
        catalog, size = self.catalog, self.config.batch_size
        attributes = [name for name in ATTRIBUTES if name in catalog.dataset.schema.names]
        columns = sorted({"ad_id", "valid_from", *attributes, *self.embedder.columns})
        saved = done.num_read
        with progress("Embedding ads", total=catalog.num_ads, unit="ads", done=saved) as advance:
            for embedded in embed(catalog, self.embedder, columns, size, saved):
                batch = _with_updates(embedded, catalog)
                blocks.append(batch)
                done = done.after(batch, num_advertisers=blocks.num_advertisers)
                done.counters.precision.check_order(self.config.precision, source=catalog.source)
                if done.num_read - saved >= self.config.checkpoint_ads:
                    self._save(blocks, done)
                    saved = done.num_read
                advance(batch.num_read)
        _check_dropped(done, catalog, self.config)
        self._save(blocks, done)
        return done

    def _save(self, blocks: BlockWriter, done: Progress) -> None:
        blocks.sync()
        write_checkpoint(self.work, done)

    def finish(self, blocks: BlockWriter, done: Progress) -> IndexManifest:
        """Complete the files; the manifest comes last."""
        _remove_last_step(self.directory)
        blocks.finish(source=self.catalog.source)
        retrieval = build_retrieval(
            self.directory,
            self.bundle.schema,
            head_dim=self.embedder.head_dim,
            queries=self.embedder.queries,
            config=self.config,
        )
        shift, warnings = self.embedder.report(done.counters)
        manifest = index_manifest(
            self.directory,
            catalog=self.catalog,
            bundle=self.bundle,
            heavy=self.heavy,
            head_dim=self.embedder.head_dim,
            precision=self.config.precision,
            progress=done,
            engine=self.embedder.engine,
            precision_loss=done.counters.precision.as_dict(),
            retrieval=retrieval.heads,
            retrieval_recall=retrieval.recall,
            shift=shift,
            warnings=warnings,
        )
        write_json(self.directory / MANIFEST, manifest)
        return manifest


def _with_updates(batch: EmbeddedBatch, catalog: Catalog) -> EmbeddedBatch:
    if catalog.updates is None:
        return batch
    return replace(batch, attributes=catalog.updates.over(batch.ids, batch.valid_from, batch.attributes))


def _remove_last_step(directory: Path) -> None:
    """Remove what an earlier run did after the blocks, temporary files among it; it is done again."""
    shutil.rmtree(directory / "retrieval", ignore_errors=True)
    for path in (directory / MANIFEST, directory / READY, *list(directory.rglob(".*"))):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _check_dropped(done: Progress, catalog: Catalog, config: IndexConfig) -> None:
    dropped = sum(done.counters.dropped.values())
    share = dropped / catalog.num_ads
    if share > config.max_dropped_share or dropped == catalog.num_ads:
        raise LogError(
            f"{catalog.source}: {dropped} of {catalog.num_ads} ads ({share:.2%}) cannot be embedded, at most "
            f"{config.max_dropped_share:.2%} are allowed (max_dropped_share): "
            f"{done.counters.faults or done.counters.dropped}"
        )
