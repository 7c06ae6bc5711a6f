"""Which content in the log of updates a catalogue has by now: what no catalogue has, the next build would miss."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contracts.artifact import read_manifest
from contracts.errors import ArtifactError
from contracts.release import IndexManifest
from indexing.arrays import map_array
from indexing.id_table import IdTable
from indexing.update_record import Update

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Ads:
    """Ads of an index: since when the content of each is valid, and how many of them come from the catalogue."""

    ids: IdTable
    valid_from: np.ndarray
    num_of_catalog: int


class HeldContent:
    """The ads of some indexes, which tell what the catalogues that they were built of had.

    The rows of an index are first those of its catalogue, then those that were merged from the log. An index that
    cannot be read tells nothing.

    Args:
        indexes: Directories.
    """

    def __init__(self, indexes: Sequence[Path]) -> None:
        self._indexes = [ads for path in indexes if (ads := _opened(path)) is not None]

    def __call__(self, updates: Sequence[Update]) -> list[bool]:
        """Whether the log may forget the content of each update.

        It may where an index holds the ad with later content, or a catalogue's row with the same ``valid_from``, which
        wins over an update.

        Args:
            updates: Such as have content.
        """
        held = np.zeros(len(updates), bool)
        ids = [update.ad_id for update in updates]
        times = np.array([update.content.valid_from for update in updates if update.content is not None], np.int64)
        for ads in self._indexes:
            rows = ads.ids.lookup(ids)
            known = np.flatnonzero(rows >= 0)
            found, of_catalog = ads.valid_from[rows[known]], rows[known] < ads.num_of_catalog
            held[known] |= (found > times[known]) | (of_catalog & (found == times[known]))
        return held.tolist()


def _opened(path: Path) -> _Ads | None:
    try:
        manifest = read_manifest(path, IndexManifest)
        ads = _Ads(
            ids=IdTable.open(path / "ids"),
            valid_from=map_array(path / "valid-from.npy"),
            num_of_catalog=manifest.num_ads - manifest.catalog.get("merged", 0),
        )
    except (ArtifactError, OSError, ValueError) as error:
        log.error("content of updates that %s may hold stays in the log: %s", path, error)
        return None
    return ads if len(ads.ids) == len(ads.valid_from) == manifest.num_ads else None
