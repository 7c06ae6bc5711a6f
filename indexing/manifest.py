"""Manifest of a finished index: what it holds, what made it, and a version that is the address of its content."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from contracts.artifact import FileEntry, file_entries
from contracts.bundle import Bundle
from contracts.records import STATUSES
from contracts.release import IndexManifest, UpdatePosition
from indexing.catalog import Catalog
from indexing.checkpoint import Progress

_VERSION_HEX = 12


def index_manifest(
    directory: Path,
    *,
    catalog: Catalog,
    bundle: Bundle,
    heavy: Bundle | None,
    head_dim: int,
    precision: str,
    progress: Progress,
    sums: Mapping[str, str],
    **more: Any,
) -> IndexManifest:
    """The manifest of the index in ``directory``, whose files are complete.

    Args:
        sums: The sha256 of files that are known already, by relative path.
        more: Further fields of the manifest.
    """
    counters = progress.counters
    identity = {
        "two_tower": bundle.manifest.version,
        "heavy": heavy.manifest.version if heavy is not None else None,
        "watermark": pa.scalar(catalog.watermark, pa.timestamp("us", "UTC")).as_py().isoformat(),
    }
    scenario = bundle.manifest.scenario or ""
    files = file_entries(directory, sums)
    return IndexManifest(
        version=index_version(scenario, identity, files, catalog.position),
        scenario=scenario,
        ad_fingerprint=bundle.schema.side_fingerprint("ad"),
        heavy_ad_fingerprint=heavy.schema.side_fingerprint("ad") if heavy is not None else None,
        tasks=list(bundle.schema.tasks),
        objectives=list(bundle.schema.objective_names),
        head_dim=head_dim,
        precision=precision,
        num_ads=progress.num_ads,
        catalog=catalog.counts,
        statuses=dict(zip(STATUSES, progress.statuses.tolist(), strict=True)),
        dropped=counters.dropped,
        faults={**catalog.faults, **counters.faults},
        coverage={name: asdict(coverage) for name, coverage in counters.coverage.items()},
        updates=catalog.position,
        files=files,
        created_at=now(),
        **identity,
        **more,
    )


def index_version(
    scenario: str,
    identity: Mapping[str, str | None],
    files: Mapping[str, FileEntry],
    updates: UpdatePosition | None,
) -> str:
    """Content address of an index: the same catalogue, updates and bundles give the same version.

    The position is part of it although it changes no file: it decides which updates count when the index is served.
    """
    parts = [identity, {name: entry.sha256 for name, entry in files.items()}]
    content = msgspec.json.encode(parts if updates is None else [*parts, updates], order="sorted")
    return f"index-{scenario}-{hashlib.sha256(content).hexdigest()[:_VERSION_HEX]}"


def now() -> str:
    """The moment at which something is made, for its manifest alone; nothing depends on it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
