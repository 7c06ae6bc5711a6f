"""The pages made from code say what the code says, and nothing that a user may set or see is left out."""

import re
from pathlib import Path

import pytest
import typer

import adsieve
from docs.write import PAGES, ROOT
from docs.writers import benchmarks, commands, http, metrics
from docs.writers.settings import groups, redis_variables
from service.settings import Settings

PACKAGES = ("contracts", "modeling", "engines", "towers", "heavy_ranker", "distill", "indexing", "adlogs", "service")
SOURCE = Path(adsieve.__file__).parent


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
    for package in PACKAGES:
        for file in (SOURCE / package).rglob("*.py"):
            read |= set(re.findall(r'"(ADSIEVE_[A-Z_]*[A-Z])"', file.read_text()))
    assert len(read) > 5
    assert not {name for name in read if f"`{name}`" not in page}
    assert {f"ADSIEVE_REDIS_{name}" for name in ("PASSWORD", "CA", "CERT", "KEY")} <= set(redis_variables())


def test_every_metric_has_a_meaning() -> None:
    described = metrics.described()
    assert len(described) > 40
    assert all(name.startswith("adsieve_") and text for name, _, _, text in described)


def test_every_route_is_told() -> None:
    page = http.page()
    for document in http.documents():
        for path, methods in document["paths"].items():
            for method in methods:
                assert f"`{method.upper()} {path}`" in page


def test_every_ratio_stands_on_its_page() -> None:
    for one in benchmarks.ratios():
        page = (ROOT / "results" / f"{one['page']}.md").read_text()
        assert re.search(rf"(?<![\d.]){one['times']:g}(?:0*)(?![\d])", page) or f"{one['times']:.1f}" in page


def test_the_picture_is_of_these_ratios(tmp_path: Path) -> None:
    benchmarks.picture(tmp_path / "ratios.svg")
    assert (tmp_path / "ratios.svg").read_text() == (ROOT / "images" / "ratios.svg").read_text()
