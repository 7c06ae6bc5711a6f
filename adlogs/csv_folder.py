"""Looks at a folder of CSV files: a sample of each, what its columns seem to hold, and which columns are keys."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_files import SEPARATORS, CsvFormat, csv_files_in, header_of, read_batches
from adlogs.csv_guess import NULL_WORDS, Guess, guess_column, null_words
from adlogs.csv_values import BadValueError, read_values
from adlogs.evidence import codes_of
from adlogs.id_codes import repeats
from contracts.config_errors import show, suggestion
from contracts.errors import LogError
from contracts.progress import progress

SAMPLE_ROWS = 100_000
"""Rows of a file that are looked at, from its beginning."""

GUESSED_ROWS = 20_000
_MIN_KEYS = 2
_SHOWN = 5


@dataclass(frozen=True)
class SampledFile:
    """The beginning of one file.

    Args:
        path: The file.
        separator: Between its fields.
        rows: Its sample, as text, null where there is no value.
        is_whole: Whether the sample is all of it.
        outcomes: Columns of which a person said that they are outcomes.
    """

    path: Path
    separator: str
    rows: pa.Table
    is_whole: bool
    outcomes: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def columns(self) -> list[str]:
        return self.rows.schema.names

    @cached_property
    def guesses(self) -> dict[str, Guess]:
        """What each column seems to hold."""
        first = {name: self.texts(name).slice(0, GUESSED_ROWS) for name in self.columns}
        return {name: guess_column(name, texts, is_outcome=name in self.outcomes) for name, texts in first.items()}

    @cached_property
    def keys(self) -> list[str]:
        """Columns whose every row has a value of its own."""
        return [name for name in self.columns if self._is_key(name)]

    @cached_property
    def timed_keys(self) -> list[str]:
        """Columns whose values come again, and together with a moment never do: rows that hold from then on."""
        times = [name for name in self.columns if self.guesses[name].is_time]
        if not times:
            return []
        moments = self.codes(times[0])
        found = [name for name in self.columns if name not in times and not self.texts(name).null_count]
        return [name for name in found if not repeats(self.codes(name), moments).any()]

    @cached_property
    def null_words(self) -> set[str]:
        """Words for no value that stand in the sample."""
        return set().union(*(null_words(self.rows[name].combine_chunks()) for name in self.columns))

    def texts(self, name: str) -> pa.Array:
        """A column as it stands there, with every word for no value as null."""
        texts = self.rows[name].combine_chunks()
        return pc.if_else(pc.is_in(texts, value_set=pa.array(NULL_WORDS)), pa.scalar(None, pa.string()), texts)

    def values(self, name: str) -> pa.Array:
        """A column as its guess reads it; text where the rest of the sample does not read so."""
        try:
            return read_values(self.texts(name), self.guesses[name].reading)
        except BadValueError:
            return self.texts(name)

    def codes(self, name: str) -> np.ndarray:
        """A number for each distinct text, int64; -1 where there is none."""
        return codes_of(self.texts(name))

    def _is_key(self, name: str) -> bool:
        texts, guess = self.texts(name), self.guesses[name]
        if texts.null_count or len(texts) < _MIN_KEYS or guess.is_time or guess.reading.kind == "number":
            return False
        return guess.reading.list_separator is None and len(pc.unique(texts)) == len(texts)


def sample_folder(directory: Path, outcomes: Sequence[str] = ()) -> list[SampledFile]:
    """Sample every CSV file of a folder; of several parts of one table, such as by day, the first stands for all.

    Args:
        directory: The folder.
        outcomes: Columns that a person named as outcomes.

    Raises:
        LogError: There is no CSV file, one cannot be read, or no file has an outcome that was named.
    """
    paths = _one_of_each(csv_files_in(directory))
    found = []
    with progress("Sampling", total=len(paths), unit="files") as advance:
        for path in paths:
            found.append(_sample(path, frozenset(outcomes)))
            advance(1, note=path.name)
    for name in outcomes:
        _require_outcome(name, [file for file in found if name in file.columns], found)
    return found


def _require_outcome(name: str, having: list[SampledFile], files: list[SampledFile]) -> None:
    known = [column for file in files for column in file.columns]
    if not having:
        raise LogError(
            f"--outcome {name}: no file has such a column, expected one{suggestion(name, known)}; found {known}"
        )
    if not any(file.guesses[name].is_flag for file in having):
        values = pc.unique(having[0].texts(name).drop_null()).slice(0, _SHOWN).to_pylist()
        raise LogError(
            f"--outcome {name}: {having[0].path} holds {show(values)}, expected 0 and 1, or two words",
            next_step="write a column of two words first, such as click and none: one for each outcome",
        )


def pattern_of(path: Path, directory: Path) -> str:
    """The name of a file, or a glob for it and its siblings that differ in digits alone."""
    shape = _shape(path.name)
    siblings = [other for other in csv_files_in(directory) if _shape(other.name) == shape]
    return path.name if len(siblings) == 1 else shape.replace("0", "*")


def _one_of_each(paths: list[Path]) -> list[Path]:
    first: dict[tuple[str, str], Path] = {}
    for path in paths:
        separator = _separator(path)
        first.setdefault((_shape(path.name), str(header_of(path, separator))), path)
    return list(first.values())


def _shape(name: str) -> str:
    """A name with each run of digits, and what joins them, as one 0.

    Example:
        >>> _shape("log-2026-03-01.csv"), _shape("ads.csv")
        ('log-0.csv', 'ads.csv')
    """
    stem, _, suffix = name.partition(".")
    return f"{re.sub(r'[0-9]+([-_][0-9]+)*', '0', stem)}.{suffix}"


def _sample(path: Path, outcomes: frozenset[str]) -> SampledFile:
    separator = _separator(path)
    batches, held, is_whole = [], 0, True
    for batch in read_batches(path, None, CsvFormat(separator=separator, null_values=())):
        if held >= SAMPLE_ROWS:
            is_whole = False
            break
        batches.append(batch.columns)
        held += batch.columns.num_rows
    schema = pa.schema([pa.field(name, pa.string()) for name in header_of(path, separator)])
    rows = pa.Table.from_batches(batches, schema=schema)
    is_whole = is_whole and rows.num_rows <= SAMPLE_ROWS
    return SampledFile(path, separator, rows.slice(0, SAMPLE_ROWS).combine_chunks(), is_whole, outcomes)


def _separator(path: Path) -> str:
    """The character that divides the first line into most names."""
    return max(SEPARATORS, key=lambda separator: len(header_of(path, separator)))
