"""What the text of CSV columns becomes, and what is said of text that it cannot be."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from adlogs.csv_values import BadValueError, Reading, read_values


def read(texts: list[str | None], **how: object) -> list[object]:
    return read_values(pa.array(texts, pa.string()), Reading(**how)).to_pylist()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("texts", "how", "values"),
    [
        (["1", " 2", "3.0", None], {"kind": "integer"}, [1, 2, 3, None]),
        (["1e3", "-0.5", None], {"kind": "number"}, [1000.0, -0.5, None]),
        (
            ["1.234.567,5", "-0,05", " 7", "2,5E-1", None],
            {"kind": "number", "decimal_comma": True},
            [1234567.5, -0.05, 7.0, 0.25, None],
        ),
        (["1,5|2", ""], {"kind": "number", "decimal_comma": True, "list_separator": "|"}, [[1.5, 2.0], []]),
        (["yes", "No", "1", "FALSE", None], {"kind": "boolean"}, [True, False, True, False, None]),
        (["1", "0", "true", None], {"kind": "label"}, [1, 0, 1, None]),
        (["a|b", "", None, "c"], {"kind": "text", "list_separator": "|"}, [["a", "b"], [], None, ["c"]]),
        (["[1, 2]", "[]", "['x']"], {"kind": "text", "list_separator": ","}, [["1", "2"], [], ["x"]]),
        (["3|2|1", "9"], {"kind": "integer", "list_separator": "|", "newest_first": True}, [[1, 2, 3], [9]]),
    ],
)
def test_values(texts: list[str | None], how: dict[str, object], values: list[object]) -> None:
    assert read(texts, **how) == values


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("2026-03-01T12:00:00Z", {"kind": "time"}),
        ("2026-03-01T13:00:00+01:00", {"kind": "time"}),
        ("2026-03-01 12:00:00", {"kind": "time"}),
        ("2026-03-01 20:00:00", {"kind": "time", "time_zone": "Asia/Shanghai"}),
        ("01/03/2026 12:00", {"kind": "time", "time_format": "%d/%m/%Y %H:%M"}),
        ("03/01/2026 12:00 PM", {"kind": "time", "time_format": "%m/%d/%Y %I:%M %p"}),
        ("1772366400", {"kind": "unix_s"}),
        ("1772366400000", {"kind": "unix_ms"}),
        ("1772366400000000", {"kind": "unix_us"}),
    ],
)
def test_a_moment_in_every_form(text: str, how: dict[str, object]) -> None:
    assert read([text, None], **how) == [datetime(2026, 3, 1, 12, tzinfo=UTC), None]


def test_times_with_and_without_zone_in_one_column() -> None:
    times = read(["2026-03-01T12:00:00Z", "2026-03-01 13:00:00"], kind="time", time_zone="Europe/Berlin")
    assert times == [datetime(2026, 3, 1, 12, tzinfo=UTC)] * 2


@pytest.mark.parametrize(
    ("texts", "how", "row", "message"),
    [
        (["1", "2", "x", "y"], {"kind": "integer"}, 2, "'x', expected a whole number"),
        (["1", "1.5"], {"kind": "integer"}, 1, "'1.5', expected a whole number"),
        (["1", "nan"], {"kind": "number"}, 1, "'nan', expected a finite number"),
        (["1,5", "1.5"], {"kind": "number", "decimal_comma": True}, 1, "'1.5', expected a number with a decimal comma"),
        (["0", "1", "2"], {"kind": "label"}, 2, "'2', expected 1 or 0"),
        (["maybe"], {"kind": "boolean"}, 0, "'maybe', expected one of 1, 0, true"),
        (["2026-03-01T12:00:00Z", "yesterday"], {"kind": "time"}, 1, "'yesterday', expected an ISO 8601 time"),
        (["1772366400000"], {"kind": "unix_s"}, 0, "'1772366400000', expected seconds since 1970"),
        (["0", "-62135596801"], {"kind": "unix_s"}, 1, "'-62135596801', expected seconds since 1970"),
        (["253402300799999", "253402300800000"], {"kind": "unix_ms"}, 1, "'253402300800000', expected milliseconds"),
        (["9" * 30], {"kind": "unix_ms"}, 0, "expected milliseconds since 1970"),
        (["31/01/2026", "2026"], {"kind": "time", "time_format": "%d/%m/%Y"}, 1, "expected a time written as %d/%m/%Y"),
        (["1|2", "3|x|4"], {"kind": "integer", "list_separator": "|"}, 1, "'x', expected a whole number, in a list"),
    ],
)
def test_the_first_text_that_cannot_be_read(texts: list[str], how: dict[str, object], row: int, message: str) -> None:
    with pytest.raises(BadValueError) as raised:
        read(texts, **how)
    assert raised.value.row == row
    assert message in str(raised.value)


@pytest.mark.parametrize("kind", ["label", "boolean"])
def test_words_for_outcomes(kind: str) -> None:
    words = {"true_values": ("Click", "buy "), "false_values": ("no click", "")}
    found = read(["click", " BUY", "No Click", None, ""], kind=kind, **words)
    assert found == [1, 1, 0, 0, 0]
    assert read(["click", None], kind=kind, true_values=("click",), false_values=("no",)) == [1, None]
    with pytest.raises(BadValueError, match="'1', expected 'Click' or 'buy ' of true_values, or 'no click' or ''"):
        read(["click", "1"], kind=kind, **words)
