"""Writes the pages of docs/ that are made from code: ``python -m docs.write``.

A test compares each page with what this writes (tests/docs/test_reference.py).
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.writers import commands, configuration, files, http, metrics, settings

ROOT = Path(__file__).parent / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "configuration.md": configuration.page,
    "files.md": files.page,
    "settings.md": settings.page,
    "metrics.md": metrics.page,
    "http.md": http.page,
}


def main() -> None:
    """Write them all."""
    ROOT.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())
        print(ROOT / name)


if __name__ == "__main__":
    main()
