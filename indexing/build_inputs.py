"""What a build reads: the dataset of ads, the bundles, settings and updates; checked before anything is made of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from contracts.bundle import Bundle, open_bundle
from contracts.encoding import Encoder
from contracts.errors import InputError, WrongArtifactError
from contracts.records import open_dataset
from indexing.catalog import check_features, input_files
from indexing.config import IndexConfig
from indexing.update_log import UpdateLog

Ads = str | Path | Sequence[str | Path]
_FORMAT = 1
"""Of the work directory; another one is begun anew."""


@dataclass(frozen=True)
class BuildInputs:
    """The inputs of one build.

    Args:
        dataset: Of ads.
        two_tower: Its pin tower embeds the ads of its scenario.
        heavy: Its schema encodes them for the heavy ranker, or None.
        config: Settings.
        as_of: Rows that begin later are left out, microseconds UTC; None takes all.
        updates: Log of updates of the store, to merge, or None.
    """

    dataset: ds.Dataset
    two_tower: Bundle
    heavy: Bundle | None
    config: IndexConfig
    as_of: int | None
    updates: UpdateLog | None

    @classmethod
    def open(
        cls,
        *,
        ads: Ads,
        two_tower: Path,
        heavy: Path | None,
        config: IndexConfig,
        as_of: datetime | None,
        updates: UpdateLog | None,
    ) -> "BuildInputs":
        """Open and verify; arguments and errors as of ``indexing.nightly.run_build``."""
        bundle = open_bundle(two_tower, kind="two_tower")
        heavy_bundle = open_bundle(heavy, kind="heavy") if heavy is not None else None
        _check_scenario(bundle, heavy_bundle)
        until = _micros(as_of)
        dataset = open_dataset(*([ads] if isinstance(ads, str | Path) else ads))
        return cls(dataset, bundle, heavy_bundle, config, until, updates)

    @property
    def scenario(self) -> str:
        return self.two_tower.manifest.scenario or ""

    def identity(self) -> dict[str, Any]:
        """What tells that an interrupted job was the same. Of the log its name alone: what is merged is in the plan."""
        manifest = self.updates.manifest() if self.updates is not None else None
        return {
            "format": _FORMAT,
            "two_tower": self.two_tower.manifest,
            "heavy": self.heavy.manifest if self.heavy is not None else None,
            "config": self.config,
            "as_of": self.as_of,
            "updates": [self.updates is not None, manifest.log if manifest is not None else None],
            "files": input_files(self.dataset),
        }

    def check_columns(self) -> None:
        """Refuse a dataset that lacks a column which a model was trained on; LogError names file, column and model."""
        for bundle in (self.two_tower, self.heavy):
            if bundle is not None:
                columns = Encoder(bundle.schema, "ad").columns
                check_features(self.dataset, columns, model=bundle.manifest.version)


def _check_scenario(bundle: Bundle, heavy: Bundle | None) -> None:
    scenario = bundle.manifest.scenario
    if scenario is None:
        raise WrongArtifactError(f"{bundle.path}: a two-tower bundle serves one scenario, this one names none")
    if heavy is not None and heavy.manifest.scenario not in (None, scenario):
        raise WrongArtifactError(
            f"{heavy.path}: heavy bundle of scenario {heavy.manifest.scenario!r}, expected none or {scenario!r}"
        )


def _micros(as_of: datetime | None) -> int | None:
    if as_of is None:
        return None
    if as_of.tzinfo is None:
        raise InputError(f"as_of: expected a time with a zone, such as 2026-03-01T00:00:00Z, got {as_of.isoformat()}")
    return pa.scalar(as_of, pa.timestamp("us", "UTC")).value
