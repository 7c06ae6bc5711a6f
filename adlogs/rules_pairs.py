"""Rules of the keys of pairs, a request and an ad: both are known, an ad has a row as of the request, none comes twice.

Letters: B rows of a slice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from adlogs.faults import FaultLog, Place
from adlogs.id_codes import IdCodes, repeats
from adlogs.log_slices import Finding, LogSlice

UNKNOWN_REQUEST = "is not in requests/, expected a request_id from there"
UNKNOWN_AD = "is not in ads/, expected an ad_id from there"
NO_AD_YET = "has no row in ads/ that is valid as of the request, expected a valid_from not after it"
NOT_CONTIGUOUS = "comes again after other requests, expected the rows of a request one after another"
REPEATED_PAIR = "comes twice with the same request, expected one row an ad and request"

PAIR = ("request_id", "ad_id")


@dataclass(frozen=True)
class PairCodes:
    """Codes of the pairs of a slice, int64 [B], -1 where the id is null; None where a column is not readable."""

    request: np.ndarray | None
    ad: np.ndarray | None

    @property
    def keys(self) -> np.ndarray | None:
        """int64 [B], one number a pair, -1 where one of its ids is null."""
        if self.request is None or self.ad is None:
            return None
        return np.where((self.request < 0) | (self.ad < 0), -1, (self.request << 32) | self.ad)


class KnownIds:
    """The ids of ``requests/`` and ``ads/``, and when they were; others get codes of their own beyond them.

    Args:
        requests: Codes of the requests met so far.
        ads: Codes of the ads met so far.
        ads_time: int64 [requests] microseconds UTC, the moment whose ads a request saw.
        first_valid: int64 [ads] microseconds UTC, when an ad begins; None where that is not known of all ads.
        all_requests: Whether an id that is not among ``requests`` is a fault.
        all_ads: The same for ``ads``.
    """

    def __init__(
        self,
        requests: IdCodes,
        ads: IdCodes,
        *,
        ads_time: np.ndarray,
        first_valid: np.ndarray | None,
        all_requests: bool,
        all_ads: bool,
    ) -> None:
        self._requests, self._ads = requests, ads
        self._ads_time, self._first_valid = ads_time, first_valid
        self._num_requests, self._num_ads = len(requests), len(ads)
        self._all_requests, self._all_ads = all_requests, all_ads

    def pair(self, key: int) -> dict[str, str]:
        """The ids that a key of :class:`PairCodes` stands for."""
        return {"request_id": self._requests.text(key >> 32), "ad_id": self._ads.text(key & 0xFFFFFFFF)}

    def codes(self, rows: LogSlice) -> PairCodes:
        request_ids, ad_ids = (rows.get(column) for column in PAIR)
        return PairCodes(
            None if request_ids is None else self._requests.add(request_ids),
            None if ad_ids is None else self._ads.add(ad_ids),
        )

    def findings(self, pairs: PairCodes) -> Iterator[Finding]:
        """Ids that their dataset lacks, and ads that begin only after the request."""
        if pairs.request is not None and self._all_requests:
            yield Finding("request_id", UNKNOWN_REQUEST, pairs.request >= self._num_requests)
        if pairs.ad is not None and self._all_ads:
            yield Finding("ad_id", UNKNOWN_AD, pairs.ad >= self._num_ads)
        if pairs.request is not None and pairs.ad is not None and self._first_valid is not None:
            yield Finding("ad_id", NO_AD_YET, self._too_early(pairs.request, pairs.ad, self._first_valid), PAIR)

    def _too_early(self, request: np.ndarray, ad: np.ndarray, first_valid: np.ndarray) -> np.ndarray:
        found = (request >= 0) & (request < self._num_requests) & (ad >= 0) & (ad < self._num_ads)
        found[found] = first_valid[ad[found]] > self._ads_time[request[found]]
        return found


class RequestOrder:
    """Finds requests that come again after others, and pairs that come twice among the rows of a request.

    Of the rows before, only which requests there were and the pairs of the last one are kept.
    """

    def __init__(self) -> None:
        self._seen = np.zeros(0, bool)
        self._last = -1
        self._open = np.zeros(0, np.int64)

    def findings(self, pairs: PairCodes) -> Iterator[Finding]:
        if pairs.request is None:
            return
        keys = pairs.keys
        if keys is not None:
            yield Finding("ad_id", REPEATED_PAIR, self._repeated(pairs.request, keys), PAIR)
        yield Finding("request_id", NOT_CONTIGUOUS, self._again(pairs.request))

    def _again(self, request: np.ndarray) -> np.ndarray:
        """bool [B], the first row of each run whose request has had a run before."""
        again = np.zeros(len(request), bool)
        rows = np.flatnonzero(request >= 0)
        codes = request[rows]
        if not len(codes):
            return again
        if codes.max() >= len(self._seen):
            self._seen = np.append(self._seen, np.zeros(codes.max() + 1, bool))
        starts = np.flatnonzero(np.diff(codes, prepend=self._last))
        again[rows[starts]] = self._seen[codes[starts]] | repeats(codes[starts])
        self._seen[codes] = True
        self._last = int(codes[-1])
        return again

    def _repeated(self, request: np.ndarray, keys: np.ndarray) -> np.ndarray:
        whole = np.concatenate([self._open, keys])
        if len(request):
            self._open = whole[(whole >> 32 == request[-1]) & (whole >= 0)]
        return (repeats(whole) & (whole >= 0))[len(whole) - len(keys) :]


class RepeatedRows:
    """Finds rows whose keys stood in an earlier row, anywhere in the dataset; 8 bytes a key and row are kept."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._keys: list[tuple[np.ndarray, ...]] = []

    def add(self, place: Place, *keys: np.ndarray) -> None:
        """Take the keys of a slice, int64 [B] each; a row whose first key is negative repeats nothing."""
        self._places.append(place)
        self._keys.append(keys)

    def keys(self) -> list[np.ndarray]:
        """The keys of all rows so far; empty before there are any."""
        return [np.concatenate(key) for key in zip(*self._keys, strict=True)]

    def note(self, faults: FaultLog, column: str, rule: str, example: Callable[..., object]) -> None:
        """Note what repeats; ``example`` shows a row by its keys."""
        if not self._places:
            return
        whole = self.keys()
        found, start = repeats(*whole) & (whole[0] >= 0), 0
        for place, keys in zip(self._places, self._keys, strict=True):
            rows = found[start : start + len(keys[0])]
            if rows.any():
                faults.note_rows(place, column, rule, rows, partial(_shown, example, keys))
            start += len(rows)


def _shown(example: Callable[..., object], keys: tuple[np.ndarray, ...], row: int) -> object:
    return example(*(int(key[row]) for key in keys))
