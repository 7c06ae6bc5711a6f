"""The nightly job: a catalogue and the bundles that will serve, to one index, in bounded memory and in one step.

Work is done in a hidden directory beside the index and outlives a kill:

    .NAME.work/inputs.json, engine.json   what the job reads, and the engine that it chose
    .NAME.work/plan/                      the catalogue, once it is found (``indexing.plan``)
    .NAME.work/checkpoint.json            how many ads of it are in index/ (``indexing.checkpoint``)
    .NAME.work/index/                     the index; renamed when it is complete
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path

import msgspec

from contracts.artifact import MANIFEST, READY, file_sha256, finish_directory, fsync, write_json
from contracts.bundle import Bundle
from contracts.errors import ArtifactError, LogError
from contracts.layout import side_layout
from contracts.progress import progress, tell
from contracts.release import IndexManifest
from indexing.attributes import ATTRIBUTES
from indexing.blocks import BlockWriter
from indexing.build_inputs import Ads, BuildInputs
from indexing.catalog import Catalog
from indexing.checkpoint import Progress, read_checkpoint, write_checkpoint
from indexing.config import IndexConfig
from indexing.embed import AdEmbedder, EmbeddedBatch
from indexing.heap import Tidy, give_back_freed_memory
from indexing.manifest import index_manifest
from indexing.merge import UpdatesToMerge
from indexing.overlay_content import ContentEmbedder
from indexing.pin_engine import OpeningEngines, pin_memory
from indexing.pipeline import embed_batches
from indexing.plan import open_plan, plan_catalog
from indexing.retrieval_build import build_retrieval
from indexing.update_log import UpdateLog
from indexing.work_directory import work_directory

EmbedBatches = Callable[[Catalog, AdEmbedder, Sequence[str], int, int], Iterator[EmbeddedBatch]]
"""As ``indexing.pipeline.embed_batches``: embeds the catalogue's ads, but for some at the beginning, in order."""


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
        WrongArtifactError: The bundles are not of one scenario.
        AdsieveError: The disk is full; run again with more room, the job goes on.
    """
    given = BuildInputs.open(ads=ads, two_tower=two_tower, heavy=heavy, config=config, as_of=as_of, updates=updates)
    with work_directory(out, given.identity()) as work:
        catalog, embedder = _prepare(work, given)
        give_back_freed_memory()  # of engines that were tried, and of the ids of the catalogue
        job = _Job(work, catalog, embedder, given.two_tower, given.heavy, config)
        begun = read_checkpoint(work)
        blocks, begun = job.open_blocks(begun)
        done = job.write_blocks(blocks, begun, embed)
        manifest = job.finish(blocks, done)
        finish_directory(job.directory, Path(out).absolute())
    return Built(manifest, begun.num_read)


def _prepare(work: Path, given: BuildInputs) -> tuple[Catalog, AdEmbedder]:
    """The catalogue and the embedder: ids are read while engines are opened, which are then compared in quiet.

    Where there is nothing to compare, the embedder is made meanwhile too.
    """
    given.check_columns()
    path, engine = work / "engine.json", given.config.engine
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        engine = msgspec.json.decode(path.read_bytes(), type=str)  # that an interrupted job had chosen
    threads = given.config.threads
    memory = pin_memory(given.two_tower, threads=threads) if engine == "auto" else None
    known = memory.recall() if memory is not None else None
    opening = OpeningEngines(given.two_tower, known or engine, threads=threads)

    def embedder() -> AdEmbedder:
        return AdEmbedder(
            given.two_tower,
            given.heavy,
            precision=given.config.precision,
            threads=threads,
            engine=engine,
            opening=opening,
            memory=memory,
        )

    with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
        made = cache(pool.submit(embedder).result if known or engine != "auto" else embedder)
        catalog = open_plan(given.dataset, work / "plan") or plan_catalog(
            given.dataset,
            scenario=given.scenario,
            as_of=given.as_of,
            directory=work / "plan",
            updates=None if given.updates is None else partial(_to_merge, given.updates, made, given.as_of),
        )
        write_json(path, made().engine)
        return catalog, made()


def _to_merge(log: UpdateLog, embedder: Callable[[], AdEmbedder], as_of: int | None) -> UpdatesToMerge:
    return UpdatesToMerge(log, ContentEmbedder(embedder()), as_of)


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
        saved, tidy = done.num_read, Tidy()
        with progress("Embedding ads", total=catalog.num_ads, unit="ads", done=saved) as advance:
            for embedded in embed(catalog, self.embedder, columns, size, saved):
                batch = _with_updates(embedded, catalog, done.num_read)
                blocks.append(batch)
                done = done.after(batch, num_advertisers=blocks.num_advertisers)
                done.counters.precision.check_order(self.config.precision, source=catalog.source)
                if done.num_read - saved >= self.config.checkpoint_ads:
                    self._save(blocks, done)
                    saved = done.num_read
                tidy(batch.num_read)
                advance(batch.num_read)
        _check_dropped(done, catalog, self.config)
        self._save(blocks, done)
        return done

    def _save(self, blocks: BlockWriter, done: Progress) -> None:
        blocks.sync()
        write_checkpoint(self.work, done)

    def finish(self, blocks: BlockWriter, done: Progress) -> IndexManifest:
        """Complete the files, the tables of ids beside what finds ads; the manifest comes last."""
        _remove_last_step(self.directory)
        blocks.finish_arrays()
        with ThreadPoolExecutor(2, thread_name_prefix="finish") as pool:
            of_ids = pool.submit(self._finish_ids, blocks)
            of_arrays = pool.submit(_sums, self.directory, "*.npy")
            retrieval = build_retrieval(
                self.directory,
                self.bundle.schema,
                head_dim=self.embedder.head_dim,
                queries=self.embedder.queries,
                config=self.config,
            )
            sums = of_ids.result() | of_arrays.result()
        shift, warnings = self.embedder.report(done.counters)
        manifest = index_manifest(
            self.directory,
            catalog=self.catalog,
            bundle=self.bundle,
            heavy=self.heavy,
            head_dim=self.embedder.head_dim,
            precision=self.config.precision,
            progress=done,
            sums=sums,
            engine=self.embedder.engine,
            precision_loss=done.counters.precision.as_dict(),
            retrieval=retrieval.heads,
            retrieval_recall=retrieval.recall,
            shift=shift,
            warnings=[*self.catalog.warnings, *warnings],
        )
        write_json(self.directory / MANIFEST, manifest)
        return manifest

    def _finish_ids(self, blocks: BlockWriter) -> dict[str, str]:
        blocks.finish_ids(source=self.catalog.source)
        return _sums(self.directory, "ids/*") | _sums(self.directory, "advertisers/*")


def _with_updates(batch: EmbeddedBatch, catalog: Catalog, first: int) -> EmbeddedBatch:
    """With the log's status and bid; ads that come from updates, after the catalogue's, have theirs."""
    if catalog.updates is None or first >= catalog.counts["kept"]:
        return batch
    over = catalog.updates.over(batch.ids, batch.valid_from, batch.attributes, catalog.made_at)
    return replace(batch, attributes=over)


def _sums(directory: Path, pattern: str) -> dict[str, str]:
    """The sha256 of complete files by relative path; they are on disk when it is known."""
    sums = {}
    for path in sorted(directory.glob(pattern)):
        sums[path.relative_to(directory).as_posix()] = file_sha256(path)
        fsync(path)
    return sums


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
