"""docs/results/README.md lists every page of results, with the command and the date that the page itself names."""

import re
from pathlib import Path

import pytest

import adsieve

RESULTS = Path(adsieve.__file__).parent / "docs" / "results"
ROW = re.compile(r"^\| \[([\w-]+)\]\(([\w-]+\.md)\) \| `([^`]+)` \| (\d{4}-\d\d-\d\d) \| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall((RESULTS / "README.md").read_text())


def test_every_page_is_listed_once() -> None:
    pages = sorted(path.name for path in RESULTS.glob("*.md") if path.name != "README.md")
    assert sorted(page for _, page, *_ in ROWS) == pages


@pytest.mark.parametrize(("name", "page", "command", "date", "outcome"), ROWS)
def test_a_row_says_what_its_page_says(name: str, page: str, command: str, date: str, outcome: str) -> None:
    text = (RESULTS / page).read_text()
    assert page == f"{name}.md"
    assert command in text
    assert date in text
    assert outcome
