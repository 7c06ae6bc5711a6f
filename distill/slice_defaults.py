"""The slices that every report has, where the log has what they are cut by, and the columns asked for.

Shapes: N pairs, R requests, A ad rows.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from contracts.errors import InputError
from contracts.parquet import readable
from contracts.records import (
    REQUIRED_COLUMNS,
    TEACHER_SEEN_UNTIL,
    LogPaths,
    dataset_files,
    open_dataset,
    read_table,
    utc_micros,
)
from distill.slices import ALL, SliceColumn, by_value, log_column, raw_column
from modeling.examples import Examples

SURFACE_COLUMNS = ("surface", "tab", "placement")
"""Where ads are shown: the first of these that the log has, under its own name."""

FOUND_BY_NAME = {
    "user activity": ("activity", "user_activity", "user_active_degree", "user_impressions"),
    "advertiser size": ("advertiser_size", "advertiser_impressions", "author_impressions"),
    "price band": ("price",),
}
"""Slice to the columns that it may be cut by; the first that the log has."""

AGE_COLUMNS = ("ad_age_days", "age_days")
UPLOAD_COLUMNS = ("created_at", "upload_time", "upload_dt")
"""An ad's age is a number of days, or the time since it was made, or else since its first row in ``ads/``."""

STUDENT_DAYS, TEACHER_DAYS = "student days", "teacher days"
TRAINED, UNSEEN = "trained", "unseen"

_NO_COLUMN = "slice {}: no such column in requests/, ads/ or candidates/ of the log"
_AGES = (1.0, 7.0, 30.0)
_AGE_NAMES = ("cold, under 1 day", "1 to 7 days", "7 to 30 days", "30 days and more", "since the log began", "missing")
_MICROS_PER_DAY, _MICROS_PER_HOUR = 86_400_000_000, 3_600_000_000


def slice_columns(
    examples: Examples,
    names: Sequence[str] = (),
    *,
    teacher_seen_until: int | None = None,
    student_seen_until: int | None = None,
) -> dict[str, SliceColumn]:
    """The columns that every report cuts by, as far as the log has them, and those asked for, N rows each.

    Args:
        examples: The pairs.
        names: Columns of ``requests/``, ``ads/`` or ``candidates/``, looked for in this order. What the report cuts by
            anyway stays as it is.
        teacher_seen_until: Microseconds UTC, the latest request that the teacher has trained on; None leaves it open.
        student_seen_until: The same of the student.

    Raises:
        InputError: A column asked for exists nowhere, holds lists or bytes, or is named ``all``.
    """
    found = {
        "hour": _hour(examples),
        "ad age": _ad_age(examples),
        **{name: log_column(examples, name) for name in _present(examples, SURFACE_COLUMNS)},
        **{
            slice_name: log_column(examples, name)
            for slice_name, columns in FOUND_BY_NAME.items()
            for name in _present(examples, columns)
        },
    }
    if ALL in names:
        raise InputError(f"slice {ALL}: is what the report calls a stage as a whole; rename the column")
    known = {TEACHER_DAYS: teacher_seen_until, STUDENT_DAYS: student_seen_until}
    always = {
        "scenario": _scenario(examples),
        "objective": _objective(examples),
        "day": _day(examples),
        **{name: column for name, column in found.items() if column is not None and _divides(column)},
        **{name: _seen(examples, until) for name, until in known.items() if until is not None},
    }
    return always | {name: asked_column(examples, name) for name in names if name not in always}


def teacher_seen_until(candidates: str) -> int | None:
    """Microseconds UTC of the latest request that the teacher of scored candidates has trained on.

    None where a file does not say, since it was not written by `adsieve heavy score`.
    """
    found = []
    for file in dataset_files(candidates):
        with readable(file):
            footer = pq.read_metadata(file).metadata or {}
        if TEACHER_SEEN_UNTIL not in footer:
            return None
        found.append(int(footer[TEACHER_SEEN_UNTIL]))
    return max(found)


def require_columns(log: LogPaths, names: Sequence[str]) -> None:
    """Refuse columns that no dataset of a log has, from its schemas alone, before anything is read.

    Raises:
        InputError: A column asked for exists nowhere.
    """
    known = {name for path in (log.requests, log.ads, log.candidates) for name in open_dataset(path).schema.names}
    for name in names:
        if name not in known:
            raise InputError(_NO_COLUMN.format(name))


def asked_column(examples: Examples, name: str) -> SliceColumn:
    """A column of the log by its name, for N pairs.

    Raises:
        InputError: It exists nowhere, or holds lists.
    """
    column = log_column(examples, name)
    if column is None:
        raise InputError(_NO_COLUMN.format(name))
    return column


def _present(examples: Examples, columns: Sequence[str]) -> list[str]:
    """The first of the columns that the log has with one value a row, if any."""
    found = ((name, raw_column(examples, name)) for name in columns)
    return [name for name, values in found if values is not None and not pt.is_nested(values[0].type)][:1]


def _scenario(examples: Examples) -> SliceColumn:
    names = pa.array(examples.summary.scenario_names, pa.string())
    return by_value(names.take(pa.array(examples.scenario))).at(np.asarray(examples.request_row))


def _objective(examples: Examples) -> SliceColumn:
    objective, names = np.asarray(examples.objective), pa.array(examples.summary.objective_names, pa.string())
    return by_value(names.take(pa.array(objective, mask=objective < 0)))


def _day(examples: Examples) -> SliceColumn:
    days = pa.array(np.asarray(examples.event_time) // _MICROS_PER_DAY).cast(pa.int32()).cast(pa.date32())
    return by_value(days.cast(pa.string()), limit=None).at(np.asarray(examples.request_row))


def _hour(examples: Examples) -> SliceColumn:
    """The hour that the log names, which may be local time, else that of the request in UTC."""
    table = examples.columns("requests", ["hour"])
    if "hour" in table.schema.names and pt.is_integer(table["hour"].type):
        hours = table["hour"].cast(pa.string())
    else:
        hours = pa.array(np.asarray(examples.event_time) % _MICROS_PER_DAY // _MICROS_PER_HOUR).cast(pa.string())
    return by_value(hours, limit=None).at(np.asarray(examples.request_row))


def _seen(examples: Examples, until: int) -> SliceColumn:
    """Whether a model has trained on data as late as the request."""
    codes = (np.asarray(examples.event_time) > until).astype(np.int64)
    return SliceColumn(codes, (TRAINED, UNSEEN)).at(np.asarray(examples.request_row))


def _ad_age(examples: Examples) -> SliceColumn:
    """Age of the ad at the request, in bands of days; ads that the log's first rows hold already are apart."""
    for name in AGE_COLUMNS:
        found = raw_column(examples, name)
        if found is not None and (pt.is_floating(found[0].type) or pt.is_integer(found[0].type)):
            days = np.asarray(found[0].cast(pa.float64()).fill_null(np.nan))[found[1]]
            return SliceColumn(_age_codes(days), _AGE_NAMES)
    since, old = _made_at(examples) or _first_seen(examples)
    age = (np.asarray(examples.event_time)[examples.request_row] - since[examples.ad_row]) / _MICROS_PER_DAY
    codes = np.where(old[examples.ad_row], _AGE_NAMES.index("since the log began"), _age_codes(age))
    return SliceColumn(codes, _AGE_NAMES)


def _age_codes(days: np.ndarray) -> np.ndarray:
    """Bands of ages; an ad dated later than the request is as new as can be."""
    return np.where(np.isnan(days), len(_AGE_NAMES) - 1, np.searchsorted(_AGES, days, side="right"))


def _made_at(examples: Examples) -> tuple[np.ndarray, np.ndarray] | None:
    """When each ad row's ad was made, float64 [A] microseconds UTC, NaN where missing; None without such a column."""
    for name in UPLOAD_COLUMNS:
        table = examples.columns("ads", [name])
        if name not in table.schema.names:
            continue
        try:
            times = _plain(table[name]).cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            continue
        micros = np.asarray(times.cast(pa.int64()).cast(pa.float64()).fill_null(np.nan))
        return micros, np.zeros(len(micros), bool)
    return None


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pt.is_dictionary(column.type) else column


def _first_seen(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """When each ad row's ad first came into ``ads/``, float64 [A], and whether that is where the log begins."""
    required = {name: REQUIRED_COLUMNS["ads"][name] for name in ("ad_id", "valid_from")}
    ads = read_table(examples.log.ads, [], required=required)
    times = utc_micros(ads["valid_from"], column="valid_from", source=examples.log.ads)
    known = pc.unique(ads["ad_id"])
    code = np.asarray(pc.index_in(ads["ad_id"], known))
    first = np.full(len(known), np.iinfo(np.int64).max)
    np.minimum.at(first, code, times)
    since = first[np.asarray(pc.index_in(examples.ad_ids, known))]
    return since.astype(np.float64), since == times.min()


def _divides(column: SliceColumn) -> bool:
    """Whether a column has two values that occur: else its one slice is the whole stage."""
    return len(np.unique(column.codes)) > 1
