"""Loops over ids, texts and vectors, compiled by Numba: what NumPy takes tens of calls and temporaries for.

Each has a reference in NumPy beside its caller, which serves where Numba is not installed, and gives the same: the same
bits, except for :func:`score_half`, which adds in another order. That of :func:`read_candidates` and of
:func:`read_query` is decoding the body.
Importing this package compiles, or loads what an earlier process compiled; ``contracts.compiled`` does so once, before
anything is served. Nothing is compiled later: signatures are fixed.

Texts come as one UTF-8 string, each followed by NUL, with ``PADDING`` bytes more that may be read. Shapes: K texts, A
rows of a table, P rows that are asked, C candidates, H heads, D width of a head's vector, F fields, U uses of a table.
"""

from contracts.kernels.bodies import NO_ROOM, NUMBERS, TEXTS, join_texts, read_candidates
from contracts.kernels.candidates import by_reason, collect, settle, sift
from contracts.kernels.ids import find_rows, list_texts
from contracts.kernels.lookups import knows_names
from contracts.kernels.queries import read_query
from contracts.kernels.ranking import best_of, exponents_at, paid_exponents, weigh
from contracts.kernels.rows import age_fields, pool_rows, scale_dense, score_half
from contracts.kernels.texts import TAIL, hash_fields, head_hashes, may_repeat, split_texts
from contracts.kernels.writing import write_row

__all__ = [
    "NO_ROOM",
    "NUMBERS",
    "TAIL",
    "TEXTS",
    "age_fields",
    "best_of",
    "by_reason",
    "collect",
    "exponents_at",
    "find_rows",
    "hash_fields",
    "head_hashes",
    "join_texts",
    "knows_names",
    "list_texts",
    "may_repeat",
    "paid_exponents",
    "pool_rows",
    "read_candidates",
    "read_query",
    "scale_dense",
    "score_half",
    "settle",
    "sift",
    "split_texts",
    "weigh",
    "write_row",
]
