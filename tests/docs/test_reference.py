"""The pages made from code say what the code says, and nothing that a user may set or see is left out."""

import re
from pathlib import Path

import pytest
import typer
from starlette.testclient import TestClient

import adsieve
from contracts.records import OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from docs.write import PAGES, ROOT
from docs.writers import benchmarks, commands, files, http, metrics
from docs.writers.settings import groups, redis_variables
from indexing.update_record import Content, Update
from service.environment import OTHERS
from service.settings import Settings

PACKAGES = ("contracts", "modeling", "engines", "towers", "heavy_ranker", "distill", "indexing", "adlogs", "service")
SOURCE = Path(adsieve.__file__).parent
SET_BY_US = {
    "WORLD_SIZE",
    "LOCAL_RANK",
    "TORCHELASTIC_RESTART_COUNT",
    "RAY_USAGE_STATS_ENABLED",
    "RAY_BACKEND_LOG_LEVEL",
}
"""By torchrun, or by us for Ray: nobody has to know them."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name](), "run python -m docs.write"


def test_every_command_and_option_is_told() -> None:
    page = commands.page()
    found = list(commands.commands(typer.main.get_command(adsieve.app), ("adsieve",)))
    assert len(found) > 25
    for words, command in found:
        section = page.split(f"## {' '.join(words)}\n")[1].split("\n## ")[0]
        lacking = [
            option
            for one in command.params
            for option in one.opts
            if f"`{option}`" not in section and option[:1] == "-"
        ]
        assert not lacking


def test_every_setting_is_told() -> None:
    told = {name for entries in groups(Settings).values() for name in entries}
    assert told == set(Settings.model_fields)


def test_every_variable_that_the_code_reads_is_told() -> None:
    page = PAGES["reference/settings.md"]()
    read = set()
    for file in [*SOURCE.glob("adsieve*.py"), *(file for name in PACKAGES for file in (SOURCE / name).rglob("*.py"))]:
        text = file.read_text()
        read |= set(re.findall(r'"(ADSIEVE_[A-Z_]*[A-Z])"', text))
        read |= set(re.findall(r'environ(?:\.get\(|\.setdefault\(|\[)"([A-Z_]+)"', text))
        read |= set(re.findall(r'envvar="([A-Z_]+)"', text))
    read |= set(re.findall(r"\$\{?(NIGHTLY_[A-Z_]+)", (SOURCE / "deploy" / "nightly.sh").read_text()))
    read -= SET_BY_US
    assert len(read) > 20
    assert not {name for name in read if f"`{name}`" not in page}
    assert {f"ADSIEVE_REDIS_{name}" for name in ("PASSWORD", "CA", "CERT", "KEY")} <= set(redis_variables())


def test_every_metric_has_a_meaning() -> None:
    described = metrics.described()
    assert len(described) > 40
    assert all(name.startswith("adsieve_") and text for name, _, _, text in described)


def test_no_metric_is_left_out() -> None:
    told, made = {name for name, *_ in metrics.described()}, set()
    for file in (SOURCE / "service").glob("*.py"):
        made |= set(re.findall(r'_gauge\(\s*"(\w+)"', file.read_text()))
    assert len(made) >= 4
    assert {f"adsieve_{name}" for name in made} <= told


def test_pages_name_settings_and_metrics_that_there_are() -> None:
    settings = {f"ADSIEVE_{name}" for name in (*(field.upper() for field in Settings.model_fields), *OTHERS)}
    exported = {name for name, *_ in metrics.described()}
    exported |= {f"{name}{suffix}" for name in exported for suffix in ("_bucket", "_sum", "_count")}
    pages = [
        *ROOT.glob("*.md"),
        *(page for name in ("concepts", "how-to", "results") for page in (ROOT / name).glob("*.md")),
    ]
    for page in [SOURCE / "README.md", *pages]:
        text = page.read_text()
        assert set(re.findall(r"ADSIEVE_[A-Z_]*[A-Z]", text)) <= settings, page
        assert set(re.findall(r"\badsieve_[a-z_]*[a-z](?![a-z_]|_?\.\.\.)", text)) <= exported, page


def test_every_route_is_told() -> None:
    ranking, heavy = http.page().split("## Routes of the role heavy")
    for page, app in zip((ranking, heavy), http.apps(), strict=True):
        routes = list(http.every_route(app.routes))
        assert ("GET", "/health/ready") in routes
        assert not [f"{method} {path}" for method, path in routes if f"| `{method} {path}` |" not in page]


def test_both_roles_export_no_other_metrics() -> None:
    told = {name for name, *_ in metrics.described()}
    for app in http.apps():
        names = set(re.findall(r"^# TYPE (\S+)", TestClient(app).get("/metrics").text, re.MULTILINE))
        assert len(names) > 40
        assert {name.removesuffix("_created") for name in names} <= told | {
            name.removesuffix("_total") for name in told
        }


def test_every_key_of_an_update_is_told() -> None:
    own = {name for name in Update.__struct_fields__ if name != "seq"}
    assert set(files.UPDATE_KEYS) == own | {f"content.{name}" for name in Content.__struct_fields__}


def test_every_column_of_a_log_is_told() -> None:
    page = files.page()
    for columns in (REQUIRED_COLUMNS, OPTIONAL_COLUMNS):
        for dataset, names in columns.items():
            section = page.split(f"### {dataset}/\n")[1].split("\n## ")[0].split("\n### ")[0]
            assert not [name for name in names if f"| `{name}` |" not in section]


def test_every_ratio_stands_on_its_page() -> None:
    for one in benchmarks.ratios():
        page = (ROOT / "results" / f"{one['page']}.md").read_text()
        assert re.search(rf"(?<![\d.]){one['times']:g}(?:0*)(?![\d])", page) or f"{one['times']:.1f}" in page


def test_the_picture_is_of_these_ratios(tmp_path: Path) -> None:
    benchmarks.picture(tmp_path / "ratios.svg")
    assert (tmp_path / "ratios.svg").read_text() == (ROOT / "images" / "ratios.svg").read_text()
