"""Finds how the rows of one CSV file are looked up from another: by the pair of columns that have most in common."""

from dataclasses import dataclass

import pyarrow.compute as pc

from adlogs.csv_folder import SampledFile
from adlogs.csv_names import plain

_MIN_OVERLAP = 0.5


@dataclass(frozen=True)
class Join:
    """That a file's key finds its rows from a column of the facts.

    Args:
        file: With one row a key.
        key: Its column.
        column: Of the facts.
        overlap: Share of the facts' values that the keys hold.
    """

    file: SampledFile
    key: str
    column: str
    overlap: float


def find_join(file: SampledFile, facts: SampledFile) -> Join | None:
    """How the facts find the rows of a file: by the pair of columns with most in common."""
    best: tuple[float, Join] | None = None
    for key in file.keys or file.timed_keys:
        keys = pc.unique(file.texts(key))
        for column in facts.columns:
            if facts.guesses[column].is_time or facts.guesses[column].is_flag:
                continue
            values = pc.unique(facts.texts(column).drop_null())
            if not len(values):
                continue
            common = pc.sum(pc.is_in(values, value_set=keys)).as_py() or 0
            overlap, coverage = common / len(values), common / len(keys)
            is_named = plain(key) == plain(column)
            if overlap < _MIN_OVERLAP and not (is_named and overlap > 0):
                continue
            score = overlap * coverage + is_named
            if best is None or score > best[0]:
                best = score, Join(file, key, column, overlap)
    if best is None or (best[0] < 0.1 and plain(best[1].key) != plain(best[1].column)):
        return None
    return best[1]
