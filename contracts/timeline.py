"""The ad as it was at a moment: which row of the ads dataset was valid then."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.errors import LogError
from contracts.records import TEXT, TIME, check_columns, plain_text, utc_micros


class AdsTimeline:
    """Finds the row of an ad that was valid at a moment: the latest ``valid_from`` not after it.

    Args:
        ads: Columns ``ad_id`` and ``valid_from``; other columns are ignored. Rows in any order.
        source: Name of the dataset in messages.

    Raises:
        LogError: A value is missing, or an ad has two rows with the same ``valid_from``.
    """

    def __init__(self, ads: pa.Table, *, source: str | Path = "ads") -> None:
        check_columns(ads.schema, {"ad_id": TEXT, "valid_from": TIME}, source=source)
        times = utc_micros(ads["valid_from"], column="valid_from", source=source)
        distinct, codes = _distinct(ads["ad_id"], column="ad_id", source=source)
        order = np.lexsort((times, codes))
        self._code_of = {ad_id: code for code, ad_id in enumerate(distinct)}
        self._rows = order.astype(np.int32)
        self._times = times[order]
        sorted_codes = codes[order]
        self._bounds = np.searchsorted(sorted_codes, np.arange(len(distinct) + 1))
        tied = np.flatnonzero((np.diff(sorted_codes) == 0) & (np.diff(self._times) == 0))
        if len(tied):
            names = sorted({distinct[code] for code in sorted_codes[tied[:1000]]})[:5]
            raise LogError(
                f"{source}: {len(tied)} rows repeat the ad_id and valid_from of another row, such as ad {names}"
            )

    def rows_at(self, ad_ids: pa.Array | pa.ChunkedArray, times: np.ndarray) -> np.ndarray:
        """Return the row of each ad at its time, int32 [B]; -1 where the ad is unknown or begins later.

        Args:
            ad_ids: Text [B], of any encoding; distinct ids are looked up once.
            times: Microseconds UTC, int64 [B].
        """
        distinct, codes = _distinct(ad_ids, column="ad_id", source="rows_at")
        known = np.fromiter((self._code_of.get(ad_id, -1) for ad_id in distinct), np.int64, len(distinct))
        found = known[codes] if len(distinct) else np.zeros(0, np.int64)
        last = self._last_not_after(np.maximum(found, 0), times) if len(self._rows) else np.full(len(found), -1)
        start = self._bounds[np.maximum(found, 0)] if len(self._rows) else 0
        valid = (found >= 0) & (last >= start)
        return np.where(valid, self._rows[last] if len(self._rows) else -1, -1).astype(np.int32)

    def _last_not_after(self, codes: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return the last position of each code's run whose time is not after, or the one before the run. Bisection."""
        low, high = self._bounds[codes], self._bounds[codes + 1]
        while (low < high).any():
            middle = (low + high) // 2
            later = self._times[np.minimum(middle, len(self._times) - 1)] > times
            searching = low < high
            high = np.where(searching & later, middle, high)
            low = np.where(searching & ~later, middle + 1, low)
        return low - 1


def _distinct(array: pa.Array | pa.ChunkedArray, *, column: str, source: str | Path) -> tuple[list[str], np.ndarray]:
    """Return distinct texts and the code of each row, int64 [B]."""
    if array.null_count:
        row = pc.index(array.is_null(), True).as_py()
        raise LogError(f"{source}: column {column} is missing in row {row}, expected text")
    whole = plain_text(array)
    whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
    encoded = whole.dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return encoded.dictionary.to_pylist(), np.asarray(encoded.indices).astype(np.int64)
