"""The index of decisions: date and title of each note, newest first."""

import re
from pathlib import Path

from docs.writers.markdown import table

NOTES = Path(__file__).parents[1] / "decisions"
HEAD = """# Decisions

Short dated notes: what was chosen, against what, because of what. A note is changed only by a later note.

"""


def page() -> str:
    """The whole page."""
    rows = [(note.name[:10], f"[{_title(note)}]({note.name})") for note in sorted(NOTES.glob("2*.md"), key=_newest)]
    return HEAD + table(("date", "decision"), rows)


def _newest(note: Path) -> tuple[int, str]:
    return -int(note.name[:10].replace("-", "")), note.name


def _title(note: Path) -> str:
    return re.sub(r"^#\s*(?:\d{4}-\d\d-\d\d: )?", "", note.read_text().splitlines()[0])
