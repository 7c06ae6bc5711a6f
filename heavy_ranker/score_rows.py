"""Scores the candidates of one part with the members of a teacher, each request by the member that may score it.

Shapes: B rows of a slice, K tasks.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.bundle import open_bundle
from contracts.encoding import Encoded, Encoder
from contracts.errors import AdsieveError, LogError
from contracts.parquet import sound_batches
from contracts.progress import Advance
from contracts.records import REQUIRED_COLUMNS, check_columns
from heavy_ranker.score_parts import Counts, Part, kept_columns, writing
from heavy_ranker.score_store import ScoreStore
from heavy_ranker.series import Teacher
from heavy_ranker.serving import HeavyServing

ROWS_PER_CALL = 1024
"""Pairs that one call of the ads' graph takes; more only adds memory traffic."""

ROWS_AT_ONCE = 32_768
MEMBERS_OPEN = 4
"""Members whose graphs are held at once. A log in the order of time needs two, one in another order opens them anew."""


class PartScorer:
    """Per-impression logits of candidates, each request encoded once a slice.

    Args:
        teacher: Its bundles are verified already.
        store: The log's requests and ads.
        threads: Of the graphs.
    """

    def __init__(self, teacher: Teacher, store: ScoreStore, *, threads: int) -> None:
        self._teacher, self._store = teacher, store
        self._pair_encoder = Encoder(teacher.schema, "pair") if teacher.schema.side_features("pair") else None
        self._serving = lru_cache(maxsize=max(MEMBERS_OPEN, _num_folds(teacher)))(
            lambda member: HeavyServing.load(
                open_bundle(Path(teacher.members[member].bundle), kind="heavy", verify=False), threads=threads
            )
        )

    def score(self, part: Part, advance: Advance) -> Counts:
        """Write the scored copy of a part.

        Raises:
            LogError: The source breaks its contract.
            AdsieveError: The model gives a logit that is not finite.
        """
        self._store.reopen()
        source = pq.ParquetFile(part.source)
        check_columns(source.schema_arrow, REQUIRED_COLUMNS["candidates"], source=part.source)
        tasks = self._teacher.schema.tasks
        kept = kept_columns(source.schema_arrow, tasks)
        counts = Counts()
        with writing(part, kept, tasks, self._teacher.version) as writer:
            batches = source.iter_batches(ROWS_AT_ONCE, row_groups=list(part.row_groups), columns=kept.names)
            for batch in sound_batches(batches, source=part.source):
                logits, found = self._logits(batch, source=part.source)
                writer.write(batch, logits)
                counts += found
                advance(batch.num_rows)
            writer.finish(part, counts, seen_until=self._teacher.seen_until)
        return counts

    def _logits(self, batch: pa.RecordBatch, *, source: str) -> tuple[np.ndarray, Counts]:
        """float32 [B, K], NaN for rows that get no score, and why."""
        for name in ("request_id", "ad_id"):
            if batch[name].null_count:
                raise LogError(f"{source}: column {name} is missing in a row, expected text")
        store = self._store
        logits = np.full((batch.num_rows, len(self._teacher.schema.tasks)), np.nan, np.float32)
        request = store.requests(batch["request_id"])
        rows = np.flatnonzero(request >= 0)
        ad = store.ads(batch["ad_id"].take(pa.array(rows)), request[rows])
        member = store.member[request[rows]]
        scored = (ad >= 0) & (member >= 0)
        for number in np.unique(member[scored]).tolist():
            own = scored & (member == number)
            at = rows[own]
            logits[at] = self._member_logits(number, self._pairs(batch, at, source), request[at], ad[own])
        if not np.isfinite(logits[rows[scored]]).all():
            raise AdsieveError(f"{source}: the heavy ranker gave a logit that is not finite")
        seen_until = self._teacher.seen_until
        seen = 0 if seen_until is None else int((store.event_time[request[rows[scored]]] <= seen_until).sum())
        return logits, Counts(
            rows=batch.num_rows,
            scored=int(scored.sum()),
            seen=seen,
            outside=batch.num_rows - len(rows),
            no_ad=int((ad < 0).sum()),
            no_member=int(((ad >= 0) & (member < 0)).sum()),
        )

    def _member_logits(self, member: int, pair: Encoded | None, request: np.ndarray, ad: np.ndarray) -> np.ndarray:
        """float32 [n, K] of rows that one member scores, by their rows in the store."""
        serving: HeavyServing = self._serving(member)
        calls = [
            self._call(serving, request[piece], ad[piece], None if pair is None else _cut(pair, piece))
            for piece in whole_requests(request, ROWS_PER_CALL)
        ]
        return np.concatenate(calls)

    def _pairs(self, batch: pa.RecordBatch, rows: np.ndarray, source: str) -> Encoded | None:
        if self._pair_encoder is None:
            return None
        table = pa.Table.from_batches([batch]).take(pa.array(rows))
        return self._pair_encoder.encode(table, num_rows=len(rows), source=source).encoded

    def _call(self, serving: HeavyServing, request: np.ndarray, ad: np.ndarray, pair: Encoded | None) -> np.ndarray:
        distinct, request_index = np.unique(request, return_inverse=True)
        state = serving.encode_request(self._store.query.take(distinct))
        calls = []
        for start in range(0, len(request), ROWS_PER_CALL):
            at = slice(start, start + ROWS_PER_CALL)
            own = None if pair is None else _cut(pair, at)
            calls.append(serving.score(state, self._store.ad.take(ad[at]), own, request_index[at]))
        return np.concatenate(calls)


def _num_folds(teacher: Teacher) -> int:
    return len(teacher.members) if teacher.fold_by is not None else 0


def _cut(encoded: Encoded, at: slice) -> Encoded:
    return Encoded(encoded.ids[at], encoded.floats[at])


def whole_requests(request_row: np.ndarray, size: int) -> Iterator[slice]:
    """Divide pairs sorted by request into slices that end where a request ends, of ``size`` pairs or little more.

    Example:
        >>> list(whole_requests(np.array([0, 0, 0, 1, 1, 2]), size=2))
        [slice(0, 3, None), slice(3, 5, None), slice(5, 6, None)]
    """
    ends = np.append(np.flatnonzero(np.diff(request_row)) + 1, len(request_row))
    start = 0
    for end in ends.tolist():
        if end - start >= size or end == len(request_row) > start:
            yield slice(start, end)
            start = end
