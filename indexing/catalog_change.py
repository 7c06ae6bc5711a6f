"""What an index loses against the one that serves: ads that it lacks, and ads that it holds as they were before.

Shapes: A ads of the serving index, L those that are lacking, O those that are older.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa

from contracts.records import STATUSES
from indexing.id_keys import SHORT, Keys, array_bytes, stored_keys
from indexing.index import Index
from indexing.update_log import UpdateLog

_ACTIVE = STATUSES.index("active")
_AT_ONCE = 65_536
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class CatalogChange:
    """From the index that serves to the one that shall be published.

    Args:
        current: The serving index.
        new: The other.
        num_active: Active ads of the serving index.
        lacking: Rows of it, int64 [L]: active ads that the new one does not know.
        num_shared: Ads that both hold.
        older: Rows of it, int64 [O]: ads whose ``valid_from`` in the new one is earlier.
    """

    current: Index
    new: Index
    num_active: int
    lacking: np.ndarray
    num_shared: int
    older: np.ndarray

    @property
    def metrics(self) -> dict[str, float]:
        """``lacking_share`` of the active ads, ``older_share`` of those that both hold."""
        return {
            "lacking_share": len(self.lacking) / max(self.num_active, 1),
            "older_share": len(self.older) / max(self.num_shared, 1),
        }

    def warnings(self) -> Iterator[str]:
        """What deserves a look, with some ids."""
        current, shares = self.current.manifest.version, self.metrics
        if len(self.lacking):
            yield (
                f"lacks {len(self.lacking):,} of {self.num_active:,} ads ({shares['lacking_share']:.2%}) that are "
                f"active in {current}, which serves: {self._some(self.lacking)}"
            )
        if len(self.older):
            yield (
                f"holds {len(self.older):,} of {self.num_shared:,} ads ({shares['older_share']:.2%}) with an earlier "
                f"valid_from than {current}, which serves: {self._some(self.older)}"
            )
        ours, theirs = self.new.manifest.watermark, self.current.manifest.watermark
        if datetime.fromisoformat(ours) < datetime.fromisoformat(theirs):
            yield f"its catalogue ends at {ours}, that of {current}, which serves, at {theirs}"

    def _some(self, rows: np.ndarray) -> str:
        return ", ".join(self.current.id_table.ids(rows[:_SHOWN])) + (", ..." if len(rows) > _SHOWN else "")


def catalog_change(new: Index, current: Index, log: UpdateLog) -> CatalogChange:
    """Compare the ads of two indexes of a scenario; what the log still brings to the new one is not lost.

    Args:
        new: What shall be published.
        current: What serves.
        log: Of the store; publishing replays what comes after the new index's position in it.
    """
    lacking, older, num_active, num_shared = [], [], 0, 0
    for start in range(0, len(current), _AT_ONCE):
        stop = min(start + _AT_ONCE, len(current))
        rows = new.id_table.lookup_keys(_keys(current.id_table.texts(start, stop)))
        active, known = current.status[start:stop] == _ACTIVE, rows >= 0
        shared = np.flatnonzero(known)
        earlier = new.valid_from[rows[shared]] < current.valid_from[start:stop][shared]
        lacking.append(start + np.flatnonzero(active & ~known))
        older.append(start + shared[earlier])
        num_active, num_shared = num_active + int(active.sum()), num_shared + len(shared)
    change = CatalogChange(
        current=current,
        new=new,
        num_active=num_active,
        lacking=_joined(lacking),
        num_shared=num_shared,
        older=_joined(older),
    )
    return _without_brought(change, log) if len(change.lacking) or len(change.older) else change


def _without_brought(change: CatalogChange, log: UpdateLog) -> CatalogChange:
    """Without the ads of which the log holds content that the new index has not merged, and none that is older."""
    newest: dict[str, int] = {}
    for update in log.read(change.new.manifest.updates):
        if update.content is not None:
            newest[update.ad_id] = max(update.content.valid_from, newest.get(update.ad_id, update.content.valid_from))
    rows = change.current.id_table.lookup(list(newest)).astype(np.int64)
    found = rows >= 0
    rows, times = rows[found], np.array(list(newest.values()), np.int64)[found]
    as_new = rows[times >= change.current.valid_from[rows]]
    return CatalogChange(
        current=change.current,
        new=change.new,
        num_active=change.num_active,
        lacking=np.setdiff1d(change.lacking, rows),
        num_shared=change.num_shared,
        older=np.setdiff1d(change.older, as_new),
    )


def _keys(ids: pa.StringArray) -> Keys:
    data, lengths = array_bytes(ids)
    return stored_keys(np.r_[data, np.zeros(SHORT, np.uint8)], np.cumsum(lengths) - lengths, lengths)


def _joined(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(rows) if rows else np.zeros(0, np.int64)
