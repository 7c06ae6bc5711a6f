"""No page points to a file or heading that is not there."""

import re
from pathlib import Path

import pytest

import adsieve

ROOT = Path(adsieve.__file__).parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title).lower()).replace(" ", "-") for title in titles}


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(without_code(page.read_text())):
        place, _, heading = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (heading and target.suffix == ".md" and heading not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_and_files_that_a_page_names_are_there(page: Path) -> None:
    text, makefile = page.read_text(), (ROOT / "Makefile").read_text()
    programs = re.findall(r"python -m ((?:benchmarks|docs)\.\w+)", text)
    assert not [
        name for name in programs if name != "benchmarks.NAME" and not (ROOT / f"{name.replace('.', '/')}.py").exists()
    ]
    assert not [name for name in re.findall(r"`make ([a-z-]+)", text) if f"\n{name}:" not in makefile]
    files = re.findall(r"`((?:tests|benchmarks|deploy|requirements|service|docs)/[\w./-]+\.\w+)`", text)
    assert not [name for name in files if not (ROOT / name).exists()]
