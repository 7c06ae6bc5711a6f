"""How far a build has come, in one small file that is replaced in one step once the ads that it counts are on disk."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from contracts.artifact import write_json
from contracts.records import STATUSES
from indexing.counters import Counters
from indexing.embed import EmbeddedBatch

CHECKPOINT = "checkpoint.json"


@dataclass(frozen=True)
class Progress:
    """What was read, stored and counted so far.

    Args:
        num_read: Ads of the catalogue that were read, whole batches.
        num_ads: Ads that are stored.
        num_advertisers: Their advertisers.
        statuses: How many of them have each status, int64.
        counters: Over all that were read.
    """

    num_read: int = 0
    num_ads: int = 0
    num_advertisers: int = 0
    statuses: np.ndarray = field(default_factory=lambda: np.zeros(len(STATUSES), np.int64))
    counters: Counters = field(default_factory=Counters)

    def after(self, batch: EmbeddedBatch, *, num_advertisers: int) -> "Progress":
        """The progress with one more batch."""
        return replace(
            self,
            num_read=self.num_read + batch.num_read,
            num_ads=self.num_ads + len(batch.ids),
            num_advertisers=num_advertisers,
            statuses=self.statuses + np.bincount(batch.attributes.status, minlength=len(STATUSES)),
            counters=self.counters.merge(batch.counters),
        )


class _Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    num_read: int
    num_ads: int
    num_advertisers: int
    statuses: list[int]
    counters: dict[str, Any]


def write_checkpoint(directory: Path, progress: Progress) -> None:
    """Replace the checkpoint; the ads that it counts must be on disk."""
    checkpoint = _Checkpoint(
        num_read=progress.num_read,
        num_ads=progress.num_ads,
        num_advertisers=progress.num_advertisers,
        statuses=progress.statuses.tolist(),
        counters=progress.counters.as_dict(),
    )
    write_json(directory / CHECKPOINT, checkpoint)


def read_checkpoint(directory: Path) -> Progress:
    """The progress that was last written; none where that cannot be read."""
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        found = msgspec.json.decode((directory / CHECKPOINT).read_bytes(), type=_Checkpoint)
        return Progress(
            num_read=found.num_read,
            num_ads=found.num_ads,
            num_advertisers=found.num_advertisers,
            statuses=np.array(found.statuses, np.int64),
            counters=Counters.from_dict(found.counters),
        )
    return Progress()
