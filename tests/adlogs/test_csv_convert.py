"""`adsieve convert csv`: what comes out equals a plain reading of the files; faults name file, line and value."""

import csv
import gzip
import io
import itertools
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import adlogs.csv_eligible
import adlogs.csv_files
import adlogs.csv_grouping
import adlogs.csv_pools
import adlogs.csv_spill
from adlogs.csv_convert import convert_csv
from adlogs.csv_files import CsvFormat, read_batches, require_names
from adlogs.csv_propose import propose_mapping
from adlogs.simulate import SimulationSummary
from contracts.errors import AdsieveError, LogError
from loading import load

HEADER = ["when", "who", "what", "where", "color", "tapped", "spent"]
MAPPING = """
version: 1
null_values: ["", "NULL"]
eligible_per_request: {eligible}
impressions:
  files: "views*.csv*"
  columns:
    when: {{name: event_time, type: unix_ms}}
    who: {{name: user_id}}
    what: {{name: ad_id}}
    where: {{name: surface}}
    color: {{name: color, side: ad}}
    tapped: {{name: label_click}}
    spent: {{name: spent, type: number, side: pair}}
lookups:
  people: {{files: people.csv, key: user_id, columns: {{who: {{name: user_id}}, tags: {{name: tags, list: ";"}}}}}}
"""
DAY_MS = 86_400_000


def made_rows(count: int) -> list[list[str]]:
    """Impressions of five days in random order; some of one user and moment, some of an ad whose color changes."""
    source = random.Random(7)
    rows = []
    for _ in range(count):
        when = 1_772_323_200_000 + source.randrange(5) * DAY_MS + source.randrange(40) * 1_000_000
        who, what = source.choice(["u1", "u2", "ü3", "NULL"]), f"ad-{source.randrange(12)}"
        color = "red" if source.random() < 0.9 else "blue"
        tapped = source.choice(["0", "0", "1", ""])
        rows.append(
            [str(when), who, what, source.choice(["feed", "a, b", 'quo"te', "two\nlines"]), color, tapped, "1.5"]
        )
    return rows


def write_csv(path: Path, header: list[str], rows: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *rows])
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "exports"
    place.mkdir()
    rows = made_rows(400)
    write_csv(place / "views-1.csv", HEADER, rows[:250])
    write_csv(place / "views-2.csv.gz", HEADER, rows[250:])
    write_csv(place / "people.csv", ["who", "tags"], [["u1", "x;y"], ["ü3", ""]])
    return place


@pytest.fixture
def convert(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], Path]]:
    def run(folder: Path, mapping: str, name: str = "log") -> tuple[dict[str, Any], Path]:
        file = tmp_path / f"{name}.yaml"
        file.write_text(mapping)
        return convert_csv(folder, file, tmp_path / name), tmp_path / name

    return run


def rows_of(log: Path, dataset: str) -> list[dict[str, Any]]:
    return pq.read_table(log / dataset).to_pylist()


def plainly(rows: list[list[str]]) -> tuple[dict[Any, dict[str, Any]], dict[Any, set[Any]]]:
    """Requests by (moment, user, number of an anonymous row), and their ads with outcomes, by loops."""
    requests: dict[Any, dict[str, Any]] = {}
    ads: dict[Any, set[Any]] = {}
    for number, (when, who, what, where, _, tapped, _) in enumerate(rows):
        key = (int(when), None if who == "NULL" else who, number if who == "NULL" else None)
        requests.setdefault(key, {"surface": where})
        ads.setdefault(key, set()).add((what, tapped))
    return requests, ads


def test_impressions_become_requests_candidates_and_changes_of_ads(folder: Path, convert: Any) -> None:
    summary, log = convert(folder, MAPPING.format(eligible=0))
    rows = made_rows(400)
    requests, ads = plainly(rows)
    found = rows_of(log, "requests")
    assert len(found) == len(requests) == summary["counts"]["requests"]
    tags = {"u1": ["x", "y"]}
    named = [row for row in found if row["user_id"] is not None]
    for row in named:
        key = (int(row["event_time"].timestamp() * 1000), row["user_id"], None)
        assert row["request_id"] == f"{key[0]}-{key[1]}"
        assert row["surface"] == requests[key]["surface"]
        assert row["tags"] == tags.get(row["user_id"])
        assert row["scenario"] == "standard"
    assert found == sorted(found, key=lambda row: row["event_time"])
    by_request: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(log, "candidates"):
        by_request.setdefault(row["request_id"], []).append(row)
    for row in named:
        key = (int(row["event_time"].timestamp() * 1000), row["user_id"], None)
        pairs = by_request[row["request_id"]]
        assert {pair["ad_id"] for pair in pairs} == {ad for ad, _ in ads[key]}
        for pair in pairs:
            outcomes = {tapped for ad, tapped in ads[key] if ad == pair["ad_id"]}
            assert pair["label_click"] == (1 if "1" in outcomes else pair["label_click"])
            assert ("" if pair["label_click"] is None else str(pair["label_click"])) in outcomes
            assert pair["stage"] == "winner"


def test_an_ad_has_a_row_for_each_change_as_of_its_moment(folder: Path, convert: Any) -> None:
    _, log = convert(folder, MAPPING.format(eligible=0))
    rows = rows_of(log, "ads")
    for ad in {row["ad_id"] for row in rows}:
        own = [row for row in rows if row["ad_id"] == ad]
        moments: dict[int, str] = {}
        for when, _, what, _, color, _, _ in made_rows(400):
            if what == ad:
                moments[int(when)] = color  # of one moment the last row counts
        expected, last = [], None
        for moment in sorted(moments):
            if moments[moment] != last:
                expected.append((moment, moments[moment]))
            last = moments[moment]
        assert sorted((int(row["valid_from"].timestamp() * 1000), row["color"]) for row in own) == expected


def test_eligible_ads_are_other_ads_of_the_day_that_have_begun(folder: Path, convert: Any) -> None:
    summary, log = convert(folder, MAPPING.format(eligible=4))
    begun: dict[str, datetime] = {}
    for row in rows_of(log, "ads"):
        begun[row["ad_id"]] = min(row["valid_from"], begun.get(row["ad_id"], row["valid_from"]))
    times = {row["request_id"]: row["event_time"] for row in rows_of(log, "requests")}
    pairs = rows_of(log, "candidates")
    eligible = [row for row in pairs if row["stage"] == "eligible"]
    of_day: dict[Any, set[str]] = {}
    for when, _, what, *_ in made_rows(400):
        of_day.setdefault(datetime.fromtimestamp(int(when) / 1000, UTC).date(), set()).add(what)
    assert 0 < len(eligible) == summary["counts"]["eligible_sampled"]
    assert len({(row["request_id"], row["ad_id"]) for row in pairs}) == len(pairs)
    for row in eligible:
        assert row["label_click"] is None
        assert row["spent"] is None
        assert begun[row["ad_id"]] <= times[row["request_id"]]
        assert row["ad_id"] in of_day[times[row["request_id"]].date()]
    shown = [{k: v for k, v in row.items() if k != "stage"} for row in pairs if row["stage"] == "winner"]
    plain_summary, plain_log = convert(folder, MAPPING.format(eligible=0), "plain")
    told = ["set eligible_per_request" in " ".join(found["warnings"]) for found in (summary, plain_summary)]
    assert told == [False, True]
    assert shown == [{k: v for k, v in row.items() if k != "stage"} for row in rows_of(plain_log, "candidates")]


@pytest.mark.parametrize("listed", [False, True])
def test_ads_that_were_shown_in_another_scenario_are_told(folder: Path, convert: Any, *, listed: bool) -> None:
    for path in folder.glob("views*"):
        path.unlink()
    rows = [[*row[:3], "feed" if "ad-1" in row[2] or row[3] == "feed" else "story", *row[4:]] for row in made_rows(400)]
    write_csv(folder / "views.csv", HEADER, rows)
    mapping = MAPPING.format(eligible=4).replace("name: surface", "name: scenario").replace("side: ad}", "side: pair}")
    if listed:
        with (folder / "ads.csv").open("w") as file:
            file.write("what,home\n" + "".join(f"ad-{number},{['feed', ''][number % 2]}\n" for number in range(12)))
        mapping += "ads: {files: ads.csv, columns: {what: {name: ad_id}, home: {name: scenario}}}\n"
    summary, log = convert(folder, mapping)
    own = {row["ad_id"]: row["scenario"] for row in rows_of(log, "ads")}
    elsewhere = {what for _, _, what, where, *_ in rows if where != own[what]}
    told = [warning for warning in summary["warnings"] if "in another scenario than their own" in warning]
    assert 0 < len(elsewhere) < len(own) + listed
    assert len(told) == 1
    assert told[0].startswith(f"{len(elsewhere)} ads were shown")


@pytest.mark.parametrize(("when", "warned"), [("17630", True), ("1772323200000", False)])
def test_a_day_that_lies_far_from_the_others_is_told(folder: Path, convert: Any, when: str, *, warned: bool) -> None:
    write_csv(folder / "views-3.csv", HEADER, [[when, "u1", "ad-1", "feed", "red", "0", "1.5"]])
    summary, _ = convert(folder, MAPPING.format(eligible=4))
    told = "1970-01-01, with 1 impressions, lies 20,513 days before the next; is a time wrong?"
    assert (told in summary["warnings"]) is warned
    assert ("is a time wrong" in " ".join(summary["warnings"])) is warned


def test_names_that_another_separator_parts_are_told(folder: Path, convert: Any) -> None:
    with pytest.raises(LogError, match="no column 'when', expected it") as raised:
        convert(folder, MAPPING.format(eligible=4).replace("version: 1", 'version: 1\nseparator: ";"'))
    assert str(raised.value.next_step).endswith('separator: ","')


@pytest.mark.parametrize(("side", "warned"), [("pair", True), ("ad", False)])
def test_bids_that_only_shown_ads_have_are_told(folder: Path, convert: Any, side: str, *, warned: bool) -> None:
    """A request made of them would rank none of the others."""
    named = f"spent: {{name: bid, side: {side}}}"
    mapping = MAPPING.format(eligible=4).replace("spent: {name: spent, type: number, side: pair}", named)
    summary, log = convert(folder, mapping)
    without = sum(row.get("bid") is None for row in rows_of(log, "candidates") if row["stage"] == "eligible")
    expected = f"bid: has no value for the {without:,} ads"
    assert without == summary["counts"]["eligible_sampled"]
    assert any(warning.startswith(expected) for warning in summary["warnings"]) is warned


def test_some_late_requests_get_all_ads_of_their_day(
    folder: Path, convert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = MAPPING.format(eligible=4)
    whole = drawn.replace("version: 1", "version: 1\nwhole_pools: 9")
    pairs, plain = (
        rows_of(convert(folder, text, name)[1], "candidates") for text, name in ((drawn, "a"), (whole, "b"))
    )
    requests = sorted(rows_of(convert(folder, drawn, "c")[1], "requests"), key=lambda row: row["event_time"])
    by_request = [{name: [] for name in (row["request_id"] for row in requests)} for _ in range(2)]
    for found, rows in zip(by_request, (pairs, plain), strict=True):
        for row in rows:
            found[row["request_id"]].append(row)
    changed = [row for row in requests if by_request[0][row["request_id"]] != by_request[1][row["request_id"]]]
    assert len(changed) == 9
    assert all(row in requests[int(0.75 * len(requests)) :] for row in changed)
    of_day: dict[Any, dict[str, datetime]] = {}
    for when, _, what, *_ in made_rows(400):
        moment = datetime.fromtimestamp(int(when) / 1000, UTC)
        day = of_day.setdefault(moment.date(), {})
        day[what] = min(moment, day.get(what, moment))
    for row in changed:
        shown = {pair["ad_id"] for pair in by_request[1][row["request_id"]]}
        assert shown == set(of_day[row["event_time"].date()])
    monkeypatch.setattr(adlogs.csv_pools, "POOL_ADS", 3)
    few = rows_of(convert(folder, whole, "few")[1], "candidates")
    eligible = [
        sum(row["request_id"] == one["request_id"] and row["stage"] == "eligible" for row in few) for one in changed
    ]
    assert eligible == [3] * 9


def test_small_blocks_give_the_same_log(folder: Path, convert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = convert(folder, MAPPING.format(eligible=3))
    monkeypatch.setattr(adlogs.csv_files, "BLOCK_BYTES", 4_096)
    monkeypatch.setattr(adlogs.csv_spill, "HELD_ROWS", 70)
    _, blocks = convert(folder, MAPPING.format(eligible=3), "blocks")
    for dataset in ("requests", "candidates", "ads"):
        assert rows_of(whole, dataset) == rows_of(blocks, dataset)


def test_a_log_written_as_csv_comes_back_equal(tiny: tuple[Path, SimulationSummary], tmp_path: Path) -> None:
    """Requests, candidates and ads apart, under other names, by the mapping that is proposed for them."""
    load("e2e/csv_exports.py").write_simulated_log(tiny[0], tmp_path / "exports")
    mapping = tmp_path / "mapping.yaml"
    proposed = propose_mapping(tmp_path / "exports", mapping)
    assert {row["column"] for row in proposed["columns"] if row["name"] is None} == {"seconds_on_site"}
    convert_csv(tmp_path / "exports", mapping, tmp_path / "log")
    sort = {"requests": ["request_id"], "candidates": ["request_id", "ad_id"], "ads": ["ad_id", "valid_from"]}
    for dataset, keys in sort.items():
        original, found = pq.read_table(tiny[0] / dataset), pq.read_table(tmp_path / "log" / dataset)
        left_out = {"labels_as_of", "sample_weight", "explore_propensity", "scenario"}
        names = [name for name in original.schema.names if name not in left_out]
        order = [(key, "ascending") for key in keys]
        expected, got = original.select(names).sort_by(order), found.select(names).sort_by(order)
        assert len(got) == len(expected)
        for name in names:
            assert_same(got[name].combine_chunks(), expected[name].combine_chunks())


def assert_same(found: pa.Array, expected: pa.Array) -> None:
    """Equal, floats as near as decimal text of fp32 is; a CSV file knows no empty list beside a missing one."""
    if pa.types.is_list(expected.type):
        lengths = [np.asarray(pc.list_value_length(array).fill_null(0)) for array in (found, expected)]
        np.testing.assert_array_equal(*lengths)
        found, expected = found.flatten(), expected.flatten()
    assert found.is_null().equals(expected.is_null())
    if pa.types.is_floating(expected.type):
        np.testing.assert_allclose(found.cast(pa.float32()).to_numpy(False), expected.to_numpy(False), rtol=1e-6)
    else:
        assert found.cast(expected.type).equals(expected)


GOOD = ["1772323200000", "u1", "a", "feed", "red", "0", "1.5"]


def but(**changes: str) -> list[str]:
    return [changes.get(name, value) for name, value in zip(HEADER, GOOD, strict=True)]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({2: but(when="17723232xx")}, "views-1.csv, line 4: column 'when' is '17723232xx', expected milliseconds"),
        ({1: but(when="")}, "views-1.csv, line 3: column 'when' has no value, expected one for event_time"),
        ({0: but(what="NULL")}, "line 2: column 'what' has no value, expected one for ad_id"),
        ({0: but(where="x\n\ny"), 1: but(tapped="7")}, "line 5: column 'tapped' is '7', expected 1 or 0"),
        ({2: GOOD[:2]}, "line 4: another number of fields, expected the 7 of line 1, got 2"),
    ],
)
def test_a_fault_names_file_line_column_and_value(
    changed: dict[int, list[str]], message: str, folder: Path, convert: Any, tmp_path: Path
) -> None:
    rows = [GOOD for _ in range(6)]
    for place, row in changed.items():
        rows[place] = row
    write_csv(folder / "views-1.csv", HEADER, rows)
    with pytest.raises(LogError) as raised:
        convert(folder, MAPPING.format(eligible=0))
    assert message in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exports", "log.yaml"]


def test_text_that_is_no_utf8_is_told_with_its_file(folder: Path, convert: Any) -> None:
    with (folder / "views-1.csv").open("ab") as file:
        file.write(b"1772323200000,u1,a,\xff\xfe,red,0,1\r\n")
    with pytest.raises(LogError, match=r"views-1\.csv, line .*expected UTF-8"):
        convert(folder, MAPPING.format(eligible=0))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("name: ad_id}", "name: ad}", "impressions.columns: none becomes 'ad_id', expected one"),
        ("{name: color, side: ad}", "{name: surface}", "impressions.columns: 2 columns become 'surface', expected one"),
        ("    who: {name", "    whom: {name", "no column 'whom', expected it; did you mean 'who'?"),
        ("files: people.csv", "files: persons.csv", "persons.csv: no such file"),
        ("key: user_id", "key: person", "lookups.people.key: no column of the requests becomes 'person'"),
        ("type: unix_ms", "type: text", "event_time is time or unix_ms or unix_s or unix_us, got 'text'"),
        ("name: label_click", "name: tapped", "impressions: no column becomes label_TASK"),
        ("spent, type: number", "spent, type: text, decimal_comma: true", "decimal_comma: only for type number"),
        (
            "type: number, side",
            'type: number, decimal_comma: true, list: ",", side',
            "the comma is that of the numbers",
        ),
        ("eligible_per_request: 0", "eligible_per_reqest: 0", "did you mean 'eligible_per_request'?"),
        ('list: ";"', 'list: ""', "expected what separates the values"),
        (
            "name: label_click",
            "name: label_click, true_values: [x]",
            "tapped.false_values: expected the words that mean 0",
        ),
        (
            "name: label_click",
            "name: label_click, true_values: [X], false_values: [y, x]",
            "tapped.true_values: 'x' stands among false_values too",
        ),
        ("name: color,", "name: color, true_values: [a], false_values: [b],", "color.true_values: only for outcomes"),
        (
            "name: label_click",
            'name: label_click, true_values: ["1"], false_values: ["no"]',
            "column 'tapped' is '0', expected '1' of true_values, or 'no' of false_values",
        ),
    ],
)
def test_a_mapping_that_does_not_fit(before: str, after: str, message: str, folder: Path, convert: Any) -> None:
    mapping = MAPPING.format(eligible=0)
    assert before in mapping
    with pytest.raises(AdsieveError) as raised:
        convert(folder, mapping.replace(before, after))
    assert message in str(raised.value)


def test_a_log_that_breaks_a_rule_is_not_published(folder: Path, convert: Any, tmp_path: Path) -> None:
    """A request_id that comes again on another day."""
    rows = [[str(1_772_323_200_000 + day * DAY_MS), "r1", "a", "f", "c", "0", "1"] for day in range(2)]
    write_csv(folder / "views-1.csv", HEADER, rows)
    (folder / "views-2.csv.gz").unlink()
    mapping = MAPPING.format(eligible=0).split("lookups")[0].replace("name: user_id", "name: request_id")
    with pytest.raises(LogError, match="no sound log, and nothing was written: .*is the request_id of an earlier row"):
        convert(folder, mapping)
    assert not (tmp_path / "log").exists()


def test_outcomes_apart_are_outcomes_enough(folder: Path, convert: Any) -> None:
    for file in folder.iterdir():
        file.unlink()
    write_csv(folder / "requests.csv", ["r", "t"], [[f"r{n}", f"2026-03-0{n}T12:00:00Z"] for n in (1, 2, 3)])
    write_csv(folder / "pairs.csv", ["r", "a"], [["r1", "x"], ["r1", "y"]])
    write_csv(folder / "sales.csv", ["r", "a", "seen", "sold"], [["r1", "x", "1", "1"]])
    write_csv(folder / "goods.csv", ["a", "color"], [["x", "red"], ["y", "blue"]])
    pair = "r: {name: request_id}, a: {name: ad_id}"
    mapping = f"""
version: 1
requests: {{files: requests.csv, columns: {{r: {{name: request_id}}, t: {{name: event_time}}}}}}
candidates: {{files: pairs.csv, columns: {{{pair}}}}}
ads: {{files: goods.csv, columns: {{a: {{name: ad_id}}, color: {{name: color}}}}}}
outcomes: {{files: sales.csv, columns: {{{pair}, seen: {{name: shown}}, sold: {{name: label_sale}}}}}}
"""
    summary, log = convert(folder, mapping)
    assert [row["label_sale"] for row in rows_of(log, "outcomes")] == [1]
    assert not any("every ad of a request was shown" in warning for warning in summary["warnings"])
    write_csv(folder / "requests.csv", ["r", "t"], [["r1", "2026-03-01T12:00:00Z"]])
    with pytest.raises(LogError, match="at least 3 moments, got 1") as raised:
        convert(folder, mapping, "short")
    assert "partial" not in str(raised.value)


def test_a_lookup_with_two_rows_of_a_key_is_refused(folder: Path, convert: Any) -> None:
    write_csv(folder / "people.csv", ["who", "tags"], [["u1", "x"], ["u1", "y"]])
    with pytest.raises(LogError, match=r"people\.csv: user_id 'u1' has several rows, expected one"):
        convert(folder, MAPPING.format(eligible=0))


def write_datasets(folder: Path, pairs: list[list[str]]) -> str:
    """Requests, candidates and ads apart, in one folder; returns their mapping."""
    moments = [[f"r{number}", f"2026-03-01 {number // 60:02d}:{number % 60:02d}:00"] for number in range(90)]
    write_csv(folder / "requests.csv", ["id", "at"], moments)
    write_csv(folder / "pairs.csv", ["id", "ad", "ok"], pairs)
    write_csv(folder / "ads.csv", ["ad"], [[f"a{number}"] for number in range(9)])
    return """
version: 1
time_zone: Europe/Berlin
requests: {files: requests.csv, columns: {id: {name: request_id}, at: {name: event_time}}}
candidates: {files: pairs.csv, columns: {id: {name: request_id}, ad: {name: ad_id}, ok: {name: label_click}}}
ads: {files: ads.csv, columns: {ad: {name: ad_id}}}
"""


def test_candidates_in_any_order_come_together_by_request(
    folder: Path, convert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [[f"r{request}", f"a{ad}", "1" if ad == 3 else ""] for request in range(90) for ad in range(9)]
    random.Random(2).shuffle(pairs)
    mapping = write_datasets(folder, pairs)
    monkeypatch.setattr(adlogs.csv_grouping, "PART_ROWS", 200)
    monkeypatch.setattr(adlogs.csv_files, "BLOCK_BYTES", 1_024)
    _, log = convert(folder, mapping)
    found = [(row["request_id"], row["ad_id"]) for row in rows_of(log, "candidates")]
    of_request: dict[str, list[str]] = {}
    for request, ad, _ in pairs:
        of_request.setdefault(request, []).append(ad)
    seen = [request for request, _ in itertools.groupby(found, key=lambda pair: pair[0])]
    assert len(seen) == len(set(seen)) == 90
    assert [pair for request in seen for pair in ((request, ad) for ad in of_request[request])] == found
    assert {row["stage"] for row in rows_of(log, "candidates") if row["label_click"] is None} == {"eligible"}
    assert {row["stage"] for row in rows_of(log, "candidates") if row["label_click"] == 1} == {"winner"}
    assert rows_of(log, "requests")[0]["event_time"] == datetime(2026, 2, 28, 23, tzinfo=UTC)
    assert {row["valid_from"] for row in rows_of(log, "ads")} == {datetime(2026, 2, 28, tzinfo=UTC)}


def test_a_mark_of_byte_order_and_empty_lines_are_no_rows(folder: Path, convert: Any) -> None:
    pairs = [["r0", "a0", "1"], ["r1", "a1", "0"], ["r2", "a2", "x"]]
    mapping = write_datasets(folder, pairs)
    text = (folder / "pairs.csv").read_bytes().replace(b"r1,", b"\r\n\r\nr1,")
    (folder / "pairs.csv").write_bytes(b"\xef\xbb\xbf" + text)
    with pytest.raises(LogError, match=r"pairs\.csv, line 6: column 'ok' is 'x', expected 1 or 0"):
        convert(folder, mapping)
    (folder / "pairs.csv").write_bytes(b"\xef\xbb\xbf" + text.replace(b",x", b",0"))
    _, log = convert(folder, mapping)
    assert [row["label_click"] for row in rows_of(log, "candidates")] == [1, 0, 0]


def test_a_file_with_a_header_alone_is_told(folder: Path, convert: Any) -> None:
    mapping = write_datasets(folder, [])
    with pytest.raises(LogError, match="the files of candidates hold no row below their header"):
        convert(folder, mapping)
    (folder / "pairs.csv").write_bytes(b"")
    with pytest.raises(LogError, match=r"pairs\.csv: is empty, expected a first line with the names"):
        convert(folder, mapping)


def test_what_is_there_is_not_replaced(folder: Path, convert: Any, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(LogError, match="exists already"):
        convert(folder, MAPPING.format(eligible=0))


@pytest.mark.parametrize("grouped", [True, False])
def test_eligible_ads_join_requests_that_are_a_file_apart(
    grouped: bool, folder: Path, convert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same day and scenario, begun, not in the request already, and the same ones whatever a block holds."""
    source = random.Random(5)
    moments = [
        [f"r{n}", f"2026-03-0{n % 3 + 1} {n // 60:02d}:{n % 60:02d}:00", "shop" if n % 5 == 0 else "feed"]
        for n in range(90)
    ]
    pairs = [
        [f"r{n}", f"a{ad}{'s' if n % 5 == 0 else n % 3}", "0.5", source.choice("01")]
        for n in range(90)
        for ad in source.sample(range(9), 3)
    ]
    ads = [
        [f"a{ad}{kind}", f"2026-03-0{int(kind) + 1} 00:40:00" if kind in "012" and ad % 2 else "2026-03-01"]
        for ad in range(9)
        for kind in "012s"
    ]
    late = {ad for ad, begun in ads if ":" in begun}
    pairs = [pair for pair in pairs if pair[1] not in late or int(pair[0][1:]) > 40]
    if not grouped:
        source.shuffle(pairs)
    write_csv(folder / "requests.csv", ["id", "at", "where"], moments)
    write_csv(folder / "pairs.csv", ["id", "ad", "price", "ok"], pairs)
    write_csv(folder / "ads.csv", ["ad", "from"], ads)
    mapping = """
version: 1
eligible_per_request: 4
requests:
  {files: requests.csv, columns: {id: {name: request_id}, at: {name: event_time}, where: {name: scenario}}}
candidates:
  files: pairs.csv
  columns: {id: {name: request_id}, ad: {name: ad_id}, price: {name: bid}, ok: {name: label_click}}
ads: {files: ads.csv, columns: {ad: {name: ad_id}, from: {name: valid_from}}}
"""
    summary, log = convert(folder, mapping)
    found = rows_of(log, "candidates")
    requests = {row["request_id"]: row for row in rows_of(log, "requests")}
    begun = {row["ad_id"]: row["valid_from"] for row in rows_of(log, "ads")}
    pools: dict[Any, set[str]] = {}
    for row in found:
        request = requests[row["request_id"]]
        if row["stage"] == "winner":
            pools.setdefault((request["event_time"].date(), request["scenario"]), set()).add(row["ad_id"])
    eligible = [row for row in found if row["stage"] == "eligible"]
    assert 90 < len(eligible) == summary["counts"]["eligible_sampled"]
    assert len(found) == summary["counts"]["candidates"] == len(pairs) + len(eligible)
    assert not summary["warnings"]
    assert len({(row["request_id"], row["ad_id"]) for row in found}) == len(found)
    for row in eligible:
        request = requests[row["request_id"]]
        assert row["label_click"] is None is row["bid"]
        assert begun[row["ad_id"]] <= request["event_time"]
        assert row["ad_id"] in pools[request["event_time"].date(), request["scenario"]]
    assert {row["ad_id"] for row in eligible} & late
    seen = [request for request, _ in itertools.groupby(found, key=lambda row: row["request_id"])]
    assert len(seen) == len(set(seen))
    whole = mapping.replace("eligible_per_request: 4", "eligible_per_request: 4\nwhole_pools: 6")
    pooled = rows_of(convert(folder, whole, "whole")[1], "candidates")
    latest = sorted(requests.values(), key=lambda row: row["event_time"])[72:]
    counts = {
        row["request_id"]: [other for other in pooled if other["request_id"] == row["request_id"]] for row in latest
    }
    full = [name for name, rows in counts.items() if rows != [row for row in found if row["request_id"] == name]]
    assert len(full) == 6
    assert [row for row in pooled if row["request_id"] not in full] == [
        row for row in found if row["request_id"] not in full
    ]
    for name in full:
        request = requests[name]
        pool = pools[request["event_time"].date(), request["scenario"]]
        assert {row["ad_id"] for row in counts[name]} == {ad for ad in pool if begun[ad] <= request["event_time"]}
    monkeypatch.setattr(adlogs.csv_eligible, "BATCH_ROWS", 7)
    monkeypatch.setattr(adlogs.csv_files, "BLOCK_BYTES", 1_024)
    assert rows_of(convert(folder, mapping, "blocks")[1], "candidates") == found
    plain = convert(folder, mapping.replace("eligible_per_request: 4", ""), "plain")
    assert "set eligible_per_request" in " ".join(plain[0]["warnings"])
    assert rows_of(plain[1], "candidates") == [row for row in found if row["stage"] == "winner"]


@pytest.mark.parametrize(
    ("names", "rows", "is_row"),
    [
        (["2026-03-01T12:00:00Z", "u1", "a", "0"], [["2026-03-01T12:01:00Z", "u2", "b", "1"]], True),
        (["1772323200000", "u1", "red", "red"], [["1772323200001", "u1", "red", "blue"]], True),
        (["u1", "red", "x"], [["u1", "red", "y"], ["u2", "red", "z"]], True),
        (["time", "user", "2024"], [["2026-03-01", "u1", "5"], ["2026-03-02", "u2", "7"]], False),
        (["0", "1", "2"], [["1", "u1", "5"]], False),
        (["user", "12", "99"], [["u1", "0", "1"], ["u2", "1", "0"]], False),
        (["", "user", "ad"], [["0", "u1", "user"]], False),
        (["time", "user"], [], False),
        (["5", "7"], [], False),
    ],
)
def test_a_first_line_that_is_a_row_is_no_header(
    names: list[str], rows: list[list[str]], is_row: bool, tmp_path: Path
) -> None:
    write_csv(tmp_path / "log.csv", names, rows)
    if not is_row:
        require_names(tmp_path / "log.csv", ",")
        return
    with pytest.raises(LogError, match=r"log\.csv, line 1: is a row like those below it") as raised:
        list(read_batches(tmp_path / "log.csv", None, CsvFormat()))
    assert f"sed -i '1i name_1,name_2,name_3{',name_4' if len(names) == 4 else ''}'" in str(raised.value.next_step)
