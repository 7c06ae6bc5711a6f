"""The nightly job: a catalogue and the bundles that will serve, to one index, in bounded memory and in one step."""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from contracts.artifact import MANIFEST, FileEntry, file_entries, publishing, write_json
from contracts.bundle import Bundle, open_bundle
from contracts.errors import InputError, LogError, MismatchError
from contracts.layout import side_layout
from contracts.progress import progress
from contracts.records import STATUSES, open_dataset
from contracts.release import IndexManifest
from indexing.attributes import ATTRIBUTES
from indexing.blocks import BlockWriter
from indexing.catalog import Catalog, plan_catalog
from indexing.config import IndexConfig
from indexing.counters import Counters
from indexing.embed import AdEmbedder
from indexing.pipeline import embed_batches

_VERSION_HEX = 12


def build_index(
    *,
    ads: str | Path,
    two_tower: Path,
    heavy: Path | None,
    out: Path,
    config: IndexConfig,
    as_of: datetime | None = None,
) -> IndexManifest:
    """Build the index of one two-tower bundle, of its scenario's ads, at ``out``.

    Memory does not grow with the catalogue: rows are streamed from the files of ``ads`` to the files of the index. The
    index appears whole or not at all; a job that was killed is simply run again.

    Args:
        ads: The ads dataset: a directory, a file or a glob.
        two_tower: Bundle whose pin tower embeds the ads.
        heavy: Bundle whose schema encodes the ads for the heavy ranker; None leaves that block out.
        out: Directory to create.
        as_of: Leave out rows that begin later. A moment with a zone.

    Returns:
        The manifest, which is also the summary: counts, coverage, faults.

    Raises:
        InputError: ``out`` exists, or ``as_of`` has no zone.
        LogError: The dataset lacks columns, has wrong types, ties or unknown values, has no ad of the scenario, or more
            than ``config.max_dropped_share`` of its ads cannot be embedded.
        ArtifactError: A bundle is truncated or altered.
        MismatchError: The bundles are not of one scenario.
    """
    bundle = open_bundle(two_tower, kind="two_tower")
    heavy_bundle = open_bundle(heavy, kind="heavy") if heavy is not None else None
    scenario = _scenario(bundle, heavy_bundle)
    dataset = open_dataset(ads)
    embedder = AdEmbedder(
        bundle, heavy_bundle, precision=config.precision, threads=config.threads, engine=config.engine
    )
    embedder.check_columns(dataset)
    with publishing(out) as aside:
        scratch = aside / "scratch"
        scratch.mkdir()
        catalog = plan_catalog(dataset, scenario=scenario, as_of=_micros(as_of), directory=scratch)
        statuses, counters = _write_blocks(aside, catalog, embedder, bundle, heavy_bundle, config)
        shutil.rmtree(scratch)
        manifest = _manifest(aside, catalog, embedder, bundle, heavy_bundle, config, statuses, counters)
        write_json(aside / MANIFEST, manifest)
    return manifest


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


def _write_blocks(
    directory: Path,
    catalog: Catalog,
    embedder: AdEmbedder,
    bundle: Bundle,
    heavy: Bundle | None,
    config: IndexConfig,
) -> tuple[np.ndarray, Counters]:
    """Stream the catalogue into the blocks; return how many ads have each status, and what was counted."""
    blocks = BlockWriter(
        directory,
        bundle.schema,
        head_dim=embedder.head_dim,
        precision=config.precision,
        heavy_layout=side_layout(heavy.schema, "ad") if heavy is not None else None,
    )
    attributes = [name for name in ATTRIBUTES if name in catalog.dataset.schema.names]
    columns = sorted({"ad_id", "valid_from", *attributes, *embedder.columns})
    statuses, counters = np.zeros(len(STATUSES), np.int64), Counters()
    with progress("Embedding ads", total=catalog.num_ads, unit="ads") as advance:
        for batch in embed_batches(catalog, embedder, columns, config.batch_size):
            blocks.append(batch)
            statuses += np.bincount(batch.attributes.status, minlength=len(STATUSES))
            counters = counters.merge(batch.counters)
            advance(batch.num_read)
    _check_dropped(counters, catalog, config)
    blocks.finish(source=catalog.source)
    return statuses, counters


def _check_dropped(counters: Counters, catalog: Catalog, config: IndexConfig) -> None:
    dropped = sum(counters.dropped.values())
    share = dropped / catalog.num_ads
    if share > config.max_dropped_share or dropped == catalog.num_ads:
        raise LogError(
            f"{catalog.source}: {dropped} of {catalog.num_ads} ads ({share:.2%}) cannot be embedded, at most "
            f"{config.max_dropped_share:.2%} are allowed (max_dropped_share): {counters.faults or counters.dropped}"
        )


def _manifest(
    aside: Path,
    catalog: Catalog,
    embedder: AdEmbedder,
    bundle: Bundle,
    heavy: Bundle | None,
    config: IndexConfig,
    statuses: np.ndarray,
    counters: Counters,
) -> IndexManifest:
    files = file_entries(aside)
    identity = {
        "two_tower": bundle.manifest.version,
        "heavy": heavy.manifest.version if heavy is not None else None,
        "watermark": pa.scalar(catalog.watermark, pa.timestamp("us", "UTC")).as_py().isoformat(),
    }
    scenario = bundle.manifest.scenario or ""
    shift, warnings = embedder.report(counters)
    return IndexManifest(
        version=f"index-{scenario}-{_digest(identity, files)}",
        scenario=scenario,
        ad_fingerprint=bundle.schema.side_fingerprint("ad"),
        heavy_ad_fingerprint=heavy.schema.side_fingerprint("ad") if heavy is not None else None,
        tasks=list(bundle.schema.tasks),
        objectives=list(bundle.schema.objective_names),
        head_dim=embedder.head_dim,
        precision=config.precision,
        num_ads=catalog.num_ads - sum(counters.dropped.values()),
        catalog=catalog.counts,
        statuses=dict(zip(STATUSES, statuses.tolist(), strict=True)),
        dropped=counters.dropped,
        faults=counters.faults,
        coverage={name: asdict(coverage) for name, coverage in counters.coverage.items()},
        shift=shift,
        warnings=warnings,
        engine=embedder.engine,
        precision_loss=counters.precision.as_dict(),
        files=files,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        **identity,
    )


def _digest(identity: Mapping[str, str | None], files: Mapping[str, FileEntry]) -> str:
    """Content address of an index: the same catalogue and bundles give the same version."""
    content = msgspec.json.encode([identity, {name: entry.sha256 for name, entry in files.items()}], order="sorted")
    return hashlib.sha256(content).hexdigest()[:_VERSION_HEX]
