"""Small pieces of Markdown that the pages made from code share."""

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are text of one line or more."""
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(cell(text) for text in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Text as it may stand in a table: one line, its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Text set as code, nothing for no text."""
    return f"`{text}`" if text else ""


def prose(docstring: str) -> str:
    """A docstring's words as Markdown: double backticks of reStructuredText become single ones."""
    return re.sub(r":(?:func|class|mod):`~?([^`]+)`", r"`\1`", docstring).replace("``", "`").strip()
