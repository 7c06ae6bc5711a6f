"""Reads CSV files as text, batch by batch, and says where in a file something stands: file, line and column."""

import csv
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv

from contracts.config_errors import one_of, show, suggestion
from contracts.errors import LogError

SEPARATORS = (",", ";", "\t", "|")

BLOCK_BYTES = 4 << 20
"""Text that is read at once; a row is shorter."""

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_LOOKED_AT = 50
_VALUE = re.compile(r"\s*([+-]?\d[\d.,]*([eE][+-]?\d+)?|\d{4}-\d\d-\d\d[T ]?[\d:.]*(Z|[+-]\d\d:?\d\d)?)\s*")
"""A number or a moment."""

_DIGIT = re.compile(r"\d")

NAME_FOLDER = "name the folder that holds your CSV files"


@dataclass(frozen=True, kw_only=True)
class CsvFormat:
    """How files are written.

    Args:
        separator: Between the fields of a line.
        null_values: Texts that mean that there is no value.
    """

    separator: str = ","
    null_values: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class CsvBatch:
    """Rows of one file, as text.

    Args:
        path: The file.
        start: Rows of the file before these, its header left out.
        columns: By the name in the header; null where the file says so.
    """

    path: Path
    start: int
    columns: pa.RecordBatch


def files_of(directory: Path, pattern: str) -> list[Path]:
    """The files of a folder that a name or glob means, sorted.

    Raises:
        LogError: There are none.
    """
    found = sorted(path for path in directory.glob(pattern) if path.is_file())
    if not found:
        near = suggestion(pattern, [path.name for path in directory.iterdir()]) if directory.is_dir() else ""
        raise LogError(f"{directory / pattern}: no such file, expected one or more CSV files{near}")
    return found


def csv_files_in(directory: Path) -> list[Path]:
    """Every CSV file of a folder, sorted.

    Raises:
        LogError: There are none.
    """
    if not directory.is_dir():
        raise LogError(f"{directory}: no such folder, expected one with CSV files", next_step=NAME_FOLDER)
    found = sorted(path for path in directory.iterdir() if path.name.endswith(SUFFIXES) and path.is_file())
    if not found:
        raise LogError(
            f"{directory}: holds no CSV file, expected names that end in {one_of(SUFFIXES)}", next_step=NAME_FOLDER
        )
    return found


def header_of(path: Path, separator: str) -> list[str]:
    """The names in the first line of a file.

    Raises:
        LogError: The file is empty, is no UTF-8 text, or names a column twice.
    """
    with _text(path) as text:
        try:
            names = next(csv.reader(text, delimiter=separator), None)
        except UnicodeDecodeError as error:
            raise _no_utf8(path, 1, error) from error
    if not names:
        raise LogError(f"{path}: is empty, expected a first line with the names of the columns")
    names[0] = names[0].removeprefix("\ufeff")
    if len(set(names)) < len(names):
        require_names(path, separator)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise LogError(f"{path}, line 1: column {twice[0]!r} comes twice, expected each name once")
    return names


def require_names(path: Path, separator: str) -> None:
    """Refuse a file whose first line is a row like the others, which would be taken for the names of the columns.

    It is one where a name is a number or a moment as all of its column are, or where names come again as values, and no
    name is a word above numbers or ids with digits. Counts from 0, which pandas writes, are names.

    Raises:
        LogError: The first line is such a row.
    """
    try:
        with _text(path) as text:
            lines = [fields for fields in itertools.islice(csv.reader(text, delimiter=separator), _LOOKED_AT) if fields]
    except (UnicodeDecodeError, csv.Error):  # reading tells where
        return
    names, rows = (lines or [[]])[0], [fields for fields in lines[1:] if len(fields) == len(lines[0])]
    if names == [str(place) for place in range(len(names))]:
        return
    like, unlike = 0, 0
    for name, values in zip(names, zip(*rows, strict=True), strict=False):
        present = [value for value in values if value.strip()]
        if present and name.strip() and all(map(_VALUE.fullmatch, present)):
            like, unlike = (like + 2, unlike) if _VALUE.fullmatch(name) else (like, unlike + 1)
        elif present and name.strip() and not _DIGIT.search(name) and all(map(_DIGIT.search, present)):
            unlike += 1
        elif name in present:
            like += 1
    if like > 1 and not unlike:
        example = separator.join(f"name_{place + 1}" for place in range(len(names))).replace("\t", "\\t")
        raise LogError(
            f"{path}, line 1: is a row like those below it, expected the names of the columns; got {show(names)}",
            next_step=f"put a line of names first, yours instead of these: sed -i '1i {example}' {path}",
        )


def _other_separator(path: Path, name: str, header: Sequence[str], separator: str) -> str | None:
    """What to do where the names stand in the line, but parted by something else than was said."""
    if len(header) == 1:
        for other in SEPARATORS:
            if other != separator and name in header[0].split(other):
                return f"say in the mapping what parts the fields of {path.name}: separator: {json.dumps(other)}"
    return None


def read_batches(path: Path, columns: Sequence[str] | None, format_: CsvFormat) -> Iterator[CsvBatch]:
    """Stream some columns of a file, or all of them, as text.

    Raises:
        LogError: A column is absent, a line has another number of fields, or the text is no UTF-8; each names its line.
    """
    header = header_of(path, format_.separator)
    require_names(path, format_.separator)
    for name in columns or ():
        if name not in header:
            message = f"{path}, line 1: no column {name!r}, expected it{suggestion(name, header)}; found {header}"
            raise LogError(message, next_step=_other_separator(path, name, header, format_.separator))
    wanted = list(header if columns is None else columns)
    start = 0
    with pa.input_stream(str(path), compression="detect") as source:
        try:
            reader = arrow_csv.open_csv(
                source,
                read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES),
                parse_options=arrow_csv.ParseOptions(delimiter=format_.separator, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(header, pa.string()),
                    null_values=list(format_.null_values),
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=True,
                    include_columns=wanted,
                ),
            )
            for batch in reader:
                yield CsvBatch(path, start, batch)
                start += batch.num_rows
        except pa.ArrowInvalid as error:
            raise _broken(path, header, format_, error) from error


def line_of(path: Path, row: int, separator: str) -> int:
    """The line of a file in which a row (from 0, the header left out) begins; empty lines are no rows."""
    with _text(path) as text:
        reader = csv.reader(text, delimiter=separator)
        remaining, line = row + 1, 1
        for fields in reader:
            if fields and not remaining:
                return line
            remaining -= bool(fields)
            line = reader.line_num + 1
    return line


def _broken(path: Path, header: list[str], format_: CsvFormat, error: pa.ArrowInvalid) -> LogError:
    """Find the line that Arrow could not read; it does not tell which."""
    line = 1
    with _text(path) as text:
        lines = csv.reader(text, delimiter=format_.separator)
        try:
            for fields in lines:
                if fields and len(fields) != len(header):
                    expected = f"expected the {len(header)} of line 1, got {len(fields)}: {show(fields)}"
                    return LogError(f"{path}, line {line}: another number of fields, {expected}")
                line = lines.line_num + 1
        except UnicodeDecodeError as wrong:
            return _no_utf8(path, line, wrong)
        except csv.Error as wrong:
            return LogError(f"{path}, line {line}: {wrong}, expected CSV")
    return LogError(f"{path}: {' '.join(str(error).split())}, expected CSV with a line of names first")


def _no_utf8(path: Path, line: int, error: UnicodeDecodeError) -> LogError:
    return LogError(
        f"{path}, line {line} or later: {error.reason}, expected UTF-8 text",
        next_step="write it as UTF-8, such as by iconv -f WINDOWS-1252 -t UTF-8 for what Excel saves in Western Europe",
    )


def _text(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(pa.input_stream(str(path), compression="detect"), encoding="utf-8", newline="")
