"""A mapping is proposed from what files hold; names only break ties."""

import csv
import random
from pathlib import Path
from typing import Any

import pytest

from adlogs.cli_csv import csv as csv_command
from adlogs.csv_mapping import CsvMapping
from adlogs.csv_propose import propose_mapping
from contracts.config import load_config
from contracts.errors import InputError, LogError

EPOCH = 1_772_323_200


def write(path: Path, header: list[str], rows: list[list[Any]], separator: str = ",") -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([header, *rows])


def proposed(folder: Path, out: Path) -> tuple[dict[str, dict[str, Any]], CsvMapping]:
    found = propose_mapping(folder, out)
    return {f"{row['file']}/{row['column']}": row for row in found["columns"]}, load_config(out, CsvMapping)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One flat file by day, with semicolons: users, goods, a leak, tags and a history."""
    place, source = tmp_path / "exports", random.Random(3)
    place.mkdir()
    color = {f"g{n}": source.choice(["red", "blue", "green"]) for n in range(30)}
    city = {f"p{n}": source.choice(["Köln", "Łódź"]) for n in range(200)}
    for day in range(2):
        rows = []
        for number in range(800):
            good, person = f"g{source.randrange(30)}", f"p{source.randrange(200)}"
            bought = int(source.random() < 0.2)
            paid = f"{source.uniform(1, 9):.2f}" if bought else ""
            moment = EPOCH + day * 86_400 + number * 60
            history = "|".join(f"g{source.randrange(30)}" for _ in range(source.randrange(12)))
            rows.append([moment, person, good, bought, paid, color[good], city[person], history, "N/A"])
        header = ["event_ts", "person", "good", "bought", "paid", "color", "city", "seen", "nothing"]
        write(place / f"shown-2026-03-0{day + 1}.csv", header, rows, ";")
    return place


def test_a_flat_folder(folder: Path, tmp_path: Path) -> None:
    rows, mapping = proposed(folder, tmp_path / "mapping.yaml")
    assert mapping.impressions is not None
    assert mapping.impressions.files == "shown-*.csv"
    assert mapping.impressions.separator == ";"
    assert set(mapping.null_values) == {"", "N/A"}
    columns = mapping.impressions.columns
    assert {name: column.name for name, column in columns.items()} == {
        "event_ts": "event_time",
        "person": "user_id",
        "good": "ad_id",
        "bought": "label_bought",
        "color": "color",
        "city": "city",
        "seen": "seen",
    }
    assert columns["event_ts"].kind == "unix_s"
    assert columns["color"].belongs_to == "ad"
    assert columns["city"].belongs_to == "query"
    paid = rows["shown-*.csv/paid"]
    assert paid["name"] is None
    assert "leak suspected: set only where bought is 1" in paid["why"]
    assert rows["shown-*.csv/nothing"]["name"] is None


def test_aligned_lists_with_falling_times_are_a_sequence_that_is_turned_around(folder: Path, tmp_path: Path) -> None:
    source = random.Random(4)
    rows = []
    for number in range(200):
        length = source.randrange(20)
        times = [EPOCH - 100 * place - number for place in range(length)]
        goods = [f"g{source.randrange(30)}" for _ in times]
        rows.append([f"p{number}", "|".join(goods), "|".join(map(str, times))])
    write(folder / "people.csv", ["person", "recent_good", "recent_time"], rows)
    _, mapping = proposed(folder, tmp_path / "mapping.yaml")
    columns = mapping.lookups["people"].columns
    assert mapping.lookups["people"].key == "user_id"
    assert columns["recent_good"].name == "recent.good"
    assert columns["recent_time"].name == "recent.time"
    assert columns["recent_time"].kind == "unix_s"
    assert all(columns[name].newest_first for name in ("recent_good", "recent_time"))


def test_decimal_commas_and_lists_of_whole_numbers(tmp_path: Path) -> None:
    """3,05 is a price and 3,5 among 30,7,2 are two tags; Größe and Preis have no names of outcomes."""
    source = random.Random(5)
    header = ["Zeitpunkt", "ad", "Größe", "tags", "bid", "flag"]
    rows = [
        [
            f"{n % 28 + 1:02d}.03.2026 12:{n % 60:02d}:00",
            f"a{source.randrange(9)}",
            f"{source.uniform(0, 3000):,.2f}".translate(str.maketrans(",.", ".,")),
            ",".join(str(source.randrange(30)) for _ in range(source.randrange(1, 4))),
            f"{source.uniform(0, 2):.2f}".replace(".", ","),
            source.randrange(2),
        ]
        for n in range(300)
    ]
    write(tmp_path / "log.csv", header, rows, ";")
    found = propose_mapping(tmp_path, tmp_path / "mapping.yaml")
    mapping = load_config(tmp_path / "mapping.yaml", CsvMapping)
    assert mapping.impressions is not None
    columns = mapping.impressions.columns
    assert [columns[name].decimal_comma for name in header] == [False, False, True, False, True, False]
    assert (columns["Größe"].name, columns["Größe"].kind, columns["bid"].name) == ("grosse", "number", "bid")
    assert columns["tags"].list == ","
    assert found["notes"] == [
        "no outcome was found, and so no leak looked for: name the columns of clicks and the like by --outcome COLUMN; "
        "of 0 and 1, or yes and no, are flag"
    ]


def test_what_to_do_about_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes("time,ad,stadt\n2026-03-01,a,Köln\n".encode("latin-1"))
    with pytest.raises(LogError, match="expected UTF-8") as raised:
        csv_command(tmp_path, propose=tmp_path / "mapping.yaml")
    assert "iconv" in str(raised.value.next_step)
    (tmp_path / "log.csv").write_text("time,ad,ad\n2026-03-01,a,b\n")
    with pytest.raises(LogError, match="comes twice") as raised:
        csv_command(tmp_path, propose=tmp_path / "mapping.yaml")
    assert raised.value.next_step == "mend what the line above names, and run the same command again"


def test_times_of_twelve_hours(tmp_path: Path) -> None:
    rows = [
        [f"03/{n % 9 + 1:02d}/2026 {n % 12 + 1}:{n % 60:02d} {'AM' if n % 5 else 'PM'}", n % 7, n % 2]
        for n in range(99)
    ]
    write(tmp_path / "log.csv", ["time", "ad", "clicked"], rows)
    columns = proposed(tmp_path, tmp_path / "mapping.yaml")[1].impressions.columns  # type: ignore[union-attr]
    assert columns["time"].format == "%m/%d/%Y %I:%M %p"


def test_what_leads_nowhere_is_told(folder: Path, tmp_path: Path) -> None:
    write(folder / "weather.csv", ["town", "rain"], [["Bonn", 1], ["Ulm", 0]])
    assert propose_mapping(folder, tmp_path / "mapping.yaml")["unused"] == ["weather.csv"]
    assert "# weather.csv: no column leads to it" in (tmp_path / "mapping.yaml").read_text()


def test_what_cannot_be_proposed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mapping.yaml").touch()
    with pytest.raises(InputError, match="is there already"):
        propose_mapping(folder, tmp_path / "mapping.yaml")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogError, match="holds no CSV file"):
        propose_mapping(tmp_path / "empty", tmp_path / "other.yaml")
    write(tmp_path / "empty" / "numbers.csv", ["x", "y"], [[0.5, 1.5], [2.5, 3.5]])
    with pytest.raises(LogError, match=r"numbers\.csv: no column looks like a moment"):
        propose_mapping(tmp_path / "empty", tmp_path / "other.yaml")
    write(tmp_path / "empty" / "numbers.csv", ["time", "x"], [["2026-03-01", 1.5], ["2026-03-02", 3.5]])
    with pytest.raises(LogError, match=r"numbers\.csv: no column looks like the id of an ad"):
        propose_mapping(tmp_path / "empty", tmp_path / "other.yaml")
    assert not (tmp_path / "other.yaml").exists()


def flat(path: Path, outcomes: list[str], name: str = "result") -> None:
    rows = [
        [f"2026-03-0{n % 9 + 1}T12:{n % 60:02d}:00Z", f"u{n % 31}", f"a{n % 7}", outcomes[n % len(outcomes)]]
        for n in range(300)
    ]
    write(path, ["time", "user", "ad", name], rows)


@pytest.mark.parametrize(
    ("name", "outcomes", "task", "true", "false", "check"),
    [
        ("clicked", ["Y", "N", "N"], "click", None, None, False),
        ("clicked", ["t", "f"], "click", None, None, False),
        ("is_click", ["click", "noclick", "noclick"], "click", ("click",), ("noclick",), False),
        ("result", ["clicked", "not clicked"], "click", ("clicked",), ("not clicked",), True),
        ("conversion", ["1", "-1"], "conversion", ("1",), ("-1",), False),
        ("purchase", ["paid", "open", "open"], "purchase", ("paid",), ("open",), True),
        ("event", ["view", "click", "purchase", "view"], "click", ("click", "purchase"), ("view",), True),
        ("purchased", ["x", "", ""], "purchased", ("x",), ("",), True),
        ("objective", ["click", "view"], None, None, None, False),
        ("color", ["red", "blue"], None, None, None, False),
    ],
)
def test_words_of_outcomes(
    name: str,
    outcomes: list[str],
    task: str | None,
    true: tuple[str, ...] | None,
    false: tuple[str, ...] | None,
    check: bool,
    tmp_path: Path,
) -> None:
    flat(tmp_path / "log.csv", outcomes, name)
    rows, mapping = proposed(tmp_path, tmp_path / "mapping.yaml")
    assert mapping.impressions is not None
    column = mapping.impressions.columns[name]
    assert column.name.startswith("label_") == (task is not None)
    if task is not None:
        assert column.name == f"label_{task}"
        assert (column.true_values, column.false_values) == (true, false)
        assert rows[f"log.csv/{name}"]["check"] is check


def nameless(path: Path, ads_a_request: int, columns: list[str]) -> None:
    """Rows whose names say nothing: k1 with a city each, k2 with a color and a house each; x counts rows."""
    source = random.Random(9)
    rows = []
    for number in range(400):
        person = source.randrange(40)
        for good in source.sample(range(60), ads_a_request):
            moment = f"2026-03-0{number % 9 + 1}T{number % 24:02d}:{number % 60:02d}:{number // 60:02d}Z"
            values = {
                "t": moment,
                "k1": f"p{person}",
                "city": f"c{person % 9}",
                "x": len(rows),
                "clicked": len(rows) % 2,
            }
            values |= {"k2": f"g{good}", "color": f"o{good % 12}", "house": f"h{good % 6}"}
            values |= {"user": values["k1"], "ad_format": f"f{good % 3}", "creative_id": values["k2"]}
            rows.append([values[name] for name in columns])
    write(path, columns, rows)


def test_ads_are_found_by_what_they_settle_and_how_they_stand_in_requests(tmp_path: Path) -> None:
    nameless(tmp_path / "log.csv", 4, ["t", "k1", "city", "x", "k2", "color", "house", "clicked"])
    rows, mapping = proposed(tmp_path, tmp_path / "mapping.yaml")
    columns = mapping.impressions.columns  # type: ignore[union-attr]
    assert {name: columns[name].name for name in ("k1", "k2", "color")} == {
        "k1": "user_id",
        "k2": "ad_id",
        "color": "color",
    }
    assert (columns["color"].belongs_to, columns["city"].belongs_to) == ("ad", "query")
    assert rows["log.csv/k2"]["check"]
    assert "no name says so: it settles color, house" in rows["log.csv/k2"]["why"]
    assert "k1 comes again at a moment" in rows["log.csv/k2"]["why"]


def test_with_a_user_known_the_ad_is_what_settles_other_things(tmp_path: Path) -> None:
    nameless(tmp_path / "log.csv", 1, ["t", "user", "city", "x", "k2", "color", "house", "clicked"])
    rows, _ = proposed(tmp_path, tmp_path / "mapping.yaml")
    assert rows["log.csv/k2"]["name"] == "ad_id"
    assert rows["log.csv/user"]["name"] == "user_id"


def test_where_evidence_does_not_decide_a_person_is_asked(tmp_path: Path) -> None:
    nameless(tmp_path / "log.csv", 1, ["t", "k1", "city", "x", "k2", "color", "house", "clicked"])
    message = "cannot tell which column is the id of the ad: k1 settles city; k2 settles color, house"
    with pytest.raises(LogError, match=message) as raised:
        propose_mapping(tmp_path, tmp_path / "mapping.yaml")
    assert "--ad-id COLUMN" in str(raised.value.next_step)
    with pytest.raises(LogError, match=r"--ad-id k3: .* has no such column"):
        propose_mapping(tmp_path, tmp_path / "mapping.yaml", "k3")
    found = propose_mapping(tmp_path, tmp_path / "mapping.yaml", "k2")["columns"]
    assert {row["column"]: row["check"] for row in found if row["name"] == "ad_id"} == {"k2": False}


def test_the_name_that_says_most_is_the_id(tmp_path: Path) -> None:
    """Neither the format of the ad, nor a look-up table whose name says nothing, stands for an ad that is named."""
    nameless(tmp_path / "log.csv", 1, ["t", "k1", "ad_format", "color", "creative_id", "clicked"])
    write(tmp_path / "k.csv", ["k1", "age"], [[f"p{n}", n % 7] for n in range(40)])
    rows, mapping = proposed(tmp_path, tmp_path / "mapping.yaml")
    assert rows["log.csv/creative_id"]["name"] == "ad_id"
    assert mapping.ads is None
    assert set(mapping.lookups) == {"k"}


def test_apart_files_of_what_was_shown_alone_get_eligible_ads(tmp_path: Path) -> None:
    moments = [[f"r{n}", f"2026-03-0{n % 9 + 1}T12:00:00Z", f"u{n % 9}"] for n in range(200)]
    write(tmp_path / "requests.csv", ["request", "time", "user"], moments)
    pairs = [[f"r{n // 2}", f"a{n % 17}", n % 3 // 2] for n in range(400)]
    write(tmp_path / "ads.csv", ["ad", "color"], [[f"a{n}", n % 3] for n in range(17)])
    write(tmp_path / "pairs.csv", ["request", "ad", "clicked"], pairs)
    assert proposed(tmp_path, tmp_path / "mapping.yaml")[1].eligible_per_request > 0
    write(tmp_path / "pairs.csv", ["request", "ad", "clicked"], [*pairs, ["r0", "a9", ""]])
    assert proposed(tmp_path, tmp_path / "other.yaml")[1].eligible_per_request == 0


def test_outcomes_that_no_name_tells_are_said(tmp_path: Path) -> None:
    """Of four files in another language the one with yes and no that others are looked up from is the candidates'."""
    source = random.Random(6)
    loads = [[f"l{n}", f"0{n % 9 + 1}.03.2026 12:{n % 60:02d}:00", f"p{n % 31}"] for n in range(300)]
    write(tmp_path / "seiten.csv", ["lade_nr", "zeit", "kunde"], loads)
    write(tmp_path / "motive.csv", ["motiv", "haus", "thema"], [[f"m{n}", f"h{n % 9}", "book"] for n in range(70)])
    write(tmp_path / "kunden.csv", ["kunde", "klasse"], [[f"p{n}", n % 4] for n in range(31)])
    slots = []
    for row in loads:
        for place, motive in enumerate(source.sample(range(70), 3)):
            hit = source.random() < 0.3
            stay = f"{source.uniform(1, 9):.1f}" if hit else ""
            slots.append([row[0], f"m{motive}", place + 1, "ja" if hit else "nein", stay, motive % 3])
    write(tmp_path / "plaetze.csv", ["lade_nr", "motiv", "platz", "geklickt", "dauer", "art"], slots)
    found = propose_mapping(tmp_path, tmp_path / "mapping.yaml")
    assert "name the columns of clicks and the like by --outcome COLUMN" in found["notes"][0]
    assert found["notes"][0].endswith("are geklickt")
    said = {
        f"{row['file']}/{row['column']}": row
        for row in propose_mapping(tmp_path, tmp_path / "said.yaml", outcomes=("geklickt",))["columns"]
    }
    mapping = load_config(tmp_path / "said.yaml", CsvMapping)
    assert mapping.requests is not None
    assert mapping.candidates is not None
    assert (mapping.requests.files, mapping.candidates.files) == ("seiten.csv", "plaetze.csv")
    clicked = mapping.candidates.columns["geklickt"]
    assert (clicked.name, clicked.true_values, clicked.false_values) == ("label_geklickt", ("ja",), ("nein",))
    assert said["plaetze.csv/motiv"]["name"] == "ad_id"
    assert said["plaetze.csv/dauer"]["name"] is None
    assert "a place? then name: position" in said["plaetze.csv/platz"]["why"]
    assert "a place?" not in said["plaetze.csv/art"]["why"]
    assert set(mapping.lookups) == {"kunden"}
    for name, message in (("x", "--outcome x: no file has such a column"), ("motiv", "expected 0 and 1, or two words")):
        with pytest.raises(LogError, match=message):
            propose_mapping(tmp_path, tmp_path / "never.yaml", outcomes=(name,))
