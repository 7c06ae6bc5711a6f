"""Rows of tables and of indexes that a request names: embeddings pooled, vectors scored, ages, dense features."""

import numpy as np
from numba import types

from contracts.kernels.build import LANES, compiled, dot_half, half, prefetch, read, write

_AHEAD = 16
"""Rows that are asked of memory before they are needed."""


_SCORED = (read(types.uint16, 2), read(types.float32, 2), read(types.int32), read(types.float32, 2))


@compiled(types.int64, *_SCORED, write(types.float32, 2), fastmath={"reassoc", "contract"})
def score_half(vectors: np.ndarray, bias: np.ndarray, rows: np.ndarray, query: np.ndarray, logits: np.ndarray) -> int:
    """As ``towers.serving.score`` of the rows [P] of an index, into ``logits`` [P, H]; a row below 0 gets none.

    Args:
        vectors: Bits of fp16 numbers [A, H * D].
        bias: [A, H].
        query: [H, D+2].

    Returns:
        How many rows are below 0.
    """
    num_heads, dim, width = query.shape[0], query.shape[1] - 2, vectors.shape[1]
    num_without = 0
    whole = dim - dim % LANES
    for place in range(len(rows)):
        ahead = rows[min(place + _AHEAD, len(rows) - 1)]
        if ahead >= 0:
            for line in range(0, width, 32):
                prefetch(vectors, ahead * width + line)
            prefetch(bias, ahead * num_heads)
        row = rows[place]
        if row < 0:
            num_without += 1
            continue
        for head in range(num_heads):
            first = row * width + head * dim
            total = bias[row, head] * query[head, dim] + query[head, dim + 1]
            for at in range(0, whole, LANES):
                total += dot_half(vectors, first + at, query, head * (dim + 2) + at)
            for at in range(whole, dim):
                total += half(vectors[row, head * dim + at]) * query[head, at]
            logits[place, head] = total
    return num_without


_POOLED = (read(types.int32, 2), read(types.float32, 2), read(types.int64, 2), write(types.float32, 2))


@compiled(types.boolean, *_POOLED)
def pool_rows(ids: np.ndarray, matrix: np.ndarray, uses: np.ndarray, flat: np.ndarray) -> bool:
    """Sums or means of the rows of one matrix that U uses name, into ``flat``; id 0 counts for nothing.

    Args:
        ids: Encoded rows [B, num_ids].
        matrix: [A, E], tables one below the other.
        uses: Of each [U, 6] where in a row of ids it begins, its ids, the first row of its table in ``matrix``, rows of
            the table, where in a row of ``flat`` its embedding begins, and 1 where that is a mean.

    Returns:
        False where an id lies outside its table.
    """
    dim = matrix.shape[1]
    for row in range(len(ids)):
        for use in range(len(uses)):
            for at in range(uses[use, 0], uses[use, 0] + uses[use, 1]):
                if 0 < ids[row, at] < uses[use, 3]:
                    for column in range(0, dim, 16):
                        prefetch(matrix, (uses[use, 2] + ids[row, at]) * dim + column)
        for use in range(len(uses)):
            start, first, limit, place = uses[use, 0], uses[use, 2], uses[use, 3], uses[use, 4]
            flat[row, place : place + dim] = 0
            count = 0
            for at in range(start, start + uses[use, 1]):
                own = ids[row, at]
                if own < 0 or own >= limit:
                    return False
                if own:
                    count += 1
                    for column in range(dim):
                        flat[row, place + column] += matrix[first + own, column]
            if uses[use, 5] and count > 1:
                for column in range(dim):
                    flat[row, place + column] /= np.float32(count)
    return True


_SCALED = (*(read(types.float64),) * 2, read(types.boolean), *(read(types.float64),) * 2, read(types.int64))


@compiled(types.boolean, *_SCALED, write(types.float32))
def scale_dense(
    values: np.ndarray,
    logs: np.ndarray,
    is_log: np.ndarray,
    mean: np.ndarray,
    std: np.ndarray,
    places: np.ndarray,
    floats: np.ndarray,
) -> bool:
    """Scale F dense features and write them into a row of floats; one that is NaN leaves the row as it is.

    Args:
        values: As given [F].
        logs: ``log1p(|values|)``, by NumPy, whose last bit differs from that of other libraries.
        is_log: Whose logarithm counts, with the sign of the value.
        mean, std: Subtracted, then divided by.
        places: Of each in ``floats``.

    Returns:
        False where a result is no finite float32; the row is then of no use.
    """
    for place in range(len(values)):
        value = values[place]
        if np.isnan(value):
            continue
        kept = np.copysign(logs[place], value) if is_log[place] else value
        found = np.float32((kept - mean[place]) / std[place])
        if not np.isfinite(found):
            return False
        floats[places[place]] = found
    return True


_AGES = (read(types.int64), read(types.int64, 2), read(types.int64), types.int64, types.int64, types.int64)


@compiled(types.boolean, *_AGES, write(types.int32))
def age_fields(
    millis: np.ndarray,
    fields: np.ndarray,
    edges_us: np.ndarray,
    now_us: int,
    earliest_ms: int,
    latest_ms: int,
    ids: np.ndarray,
) -> bool:
    """Buckets of the ages of events, most recent first, those of F fields one after another.

    Args:
        millis: Moments, milliseconds since 1970.
        fields: Of each the number of its events, where its ids begin in ``ids``, and the places in ``edges_us`` where
            its edges begin and end [F, 4].
        now_us: Against which ages are taken, microseconds.
        earliest_ms, latest_ms: No moment is before or behind these.
        ids: A row of ids, written to: 3 and the number of edges that are no larger than the age.

    Returns:
        False where an event is later than now, out of order or out of range; the row is then of no use.
    """
    at = 0
    for field in range(len(fields)):
        youngest = 0
        for number in range(fields[field, 0]):
            milli = millis[at + number]
            age = now_us - milli * 1000
            if age < youngest or milli < earliest_ms or milli > latest_ms:
                return False
            youngest = age
            low, high = fields[field, 2], fields[field, 3]
            while low < high:
                middle = (low + high) // 2
                if edges_us[middle] <= age:
                    low = middle + 1
                else:
                    high = middle
            ids[fields[field, 1] + number] = np.int32(low - fields[field, 2]) + np.int32(3)
        at += fields[field, 0]
    return True
