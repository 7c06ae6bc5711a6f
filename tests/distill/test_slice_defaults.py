"""The slices that every report has, against plain loops over the log's own values."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import InputError
from contracts.records import TEACHER_SEEN_UNTIL
from distill.slice_defaults import STUDENT_DAYS, TEACHER_DAYS, slice_columns, teacher_seen_until
from modeling.examples import Examples
from modeling.log_requests import utc_microseconds

DAY = timedelta(days=1)


def _with_ads(examples: Examples, directory: Path, **columns: pa.Array) -> Examples:
    """The same pairs over another ``ads/``."""
    directory.mkdir()
    pq.write_table(pa.table(columns), directory / "ads.parquet")
    return replace(examples, log=replace(examples.log, ads=str(directory)))


def _values(examples: Examples, name: str) -> list[str]:
    column = slice_columns(examples)[name]
    return [column.values[code] for code in column.codes]


def _moments(examples: Examples) -> list[datetime]:
    start = datetime(1970, 1, 1, tzinfo=UTC)
    return [start + timedelta(microseconds=int(examples.event_time[row])) for row in examples.request_row]


def test_the_hour_is_of_the_request_in_utc(examples: Examples) -> None:
    assert _values(examples, "hour") == [str(moment.hour) for moment in _moments(examples)]
    assert slice_columns(examples)["hour"].values == tuple(str(hour) for hour in range(14))


def test_an_ad_is_as_old_as_its_first_row(examples: Examples, tmp_path: Path) -> None:
    """Every fifth ad comes into the log at noon of its second day; a later row changes nothing."""
    ids = sorted(set(examples.ad_ids.to_pylist()))
    begin, noon = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, 12, tzinfo=UTC)
    first = {ad_id: noon if number % 5 == 0 else begin for number, ad_id in enumerate(ids)}
    rows = [(ad_id, first[ad_id] + later) for ad_id in ids for later in (3 * DAY, timedelta(0))]
    times = pa.array([time for _, time in rows], pa.timestamp("us", "UTC"))
    scenario = pa.array(["shopping"] * len(rows))
    changed = _with_ads(
        examples, tmp_path / "ads", ad_id=pa.array([ad for ad, _ in rows]), valid_from=times, scenario=scenario
    )
    changed = replace(changed, positions=changed.positions | {"ads": np.zeros(len(examples.ad_ids), np.int64)})
    ads = [examples.ad_ids[row].as_py() for row in examples.ad_row]
    expected = [
        "since the log began" if first[ad] == begin else "cold, under 1 day" if moment < noon + DAY else "1 to 7 days"
        for ad, moment in zip(ads, _moments(examples), strict=True)
    ]
    assert _values(changed, "ad age") == expected
    assert set(expected) == {"since the log began", "cold, under 1 day", "1 to 7 days"}


def test_a_column_of_ages_and_one_of_upload_days_are_taken(examples: Examples, tmp_path: Path) -> None:
    count = len(examples.ad_ids)
    own = replace(examples, positions=examples.positions | {"ads": np.arange(count)})
    days = np.resize([0.0, 0.99, 1.0, 6.9, 7.0, 30.0, np.nan], count)
    ages = pa.array(days, pa.float32(), mask=np.isnan(days))
    names = ["cold, under 1 day"] * 2 + ["1 to 7 days"] * 2 + ["7 to 30 days", "30 days and more", "missing"]
    aged = _with_ads(own, tmp_path / "aged", ad_age_days=ages)
    assert _values(aged, "ad age") == [names[row % 7] for row in examples.ad_row]
    texts = pa.array(["2026-02-01" if row % 2 else "2026-02-27" for row in range(count)]).dictionary_encode()
    uploaded = _with_ads(own, tmp_path / "uploaded", upload_dt=texts)
    made = [datetime(2026, 2, 1, tzinfo=UTC) if row % 2 else datetime(2026, 2, 27, tzinfo=UTC) for row in range(count)]
    ages_in_days = [
        (moment - made[row]) / DAY for row, moment in zip(examples.ad_row.tolist(), _moments(examples), strict=True)
    ]
    expected = [
        "1 to 7 days" if age < 7 else "7 to 30 days" if age < 30 else "30 days and more" for age in ages_in_days
    ]
    assert _values(uploaded, "ad age") == expected


def test_surface_and_tab_keep_their_names(examples: Examples, tmp_path: Path) -> None:
    own = replace(examples, positions=examples.positions | {"ads": np.arange(len(examples.ad_ids))})
    tabs = pa.array(np.arange(len(examples.ad_ids)) % 12)
    found = slice_columns(_with_ads(own, tmp_path / "ads", tab=tabs, ad_age_days=tabs.cast(pa.float32())))
    assert found["tab"].values == tuple(str(tab) for tab in range(12))
    np.testing.assert_array_equal(found["tab"].codes, examples.ad_row % 12)
    assert "surface" not in found


def test_days_that_trained_are_apart_from_unseen_ones(examples: Examples) -> None:
    until = utc_microseconds(datetime(2026, 3, 2, tzinfo=UTC))
    columns = slice_columns(examples, teacher_seen_until=until, student_seen_until=until + 86_400_000_000)
    day = columns["day"]
    teacher = {"2026-03-01": "trained", "2026-03-02": "unseen", "2026-03-03": "unseen"}
    student = {"2026-03-01": "trained", "2026-03-02": "trained", "2026-03-03": "unseen"}
    for name, expected in ((TEACHER_DAYS, teacher), (STUDENT_DAYS, student)):
        column = columns[name]
        pairs = zip(column.codes, day.codes, strict=True)
        assert all(column.values[code] == expected[day.values[own]] for code, own in pairs)
    assert not {TEACHER_DAYS, STUDENT_DAYS} & set(slice_columns(examples))


def test_scored_candidates_say_until_when_their_teacher_trained(tmp_path: Path) -> None:
    table = pa.table({"request_id": ["r"]})
    for name, until in (("a", 5), ("b", 7)):
        pq.write_table(table.replace_schema_metadata({TEACHER_SEEN_UNTIL: str(until)}), tmp_path / f"{name}.parquet")
    assert teacher_seen_until(str(tmp_path)) == 7
    pq.write_table(table, tmp_path / "c.parquet")
    assert teacher_seen_until(str(tmp_path)) is None


def test_unknown_and_nested_columns_are_refused(examples: Examples) -> None:
    with pytest.raises(InputError, match="slice shoe_size: no such column in requests/, ads/ or candidates/"):
        slice_columns(examples, ["shoe_size"])
    with pytest.raises(InputError, match="slice clicks.ad_id: has type list<.*>, expected one value a row"):
        slice_columns(examples, ["clicks.ad_id"])
