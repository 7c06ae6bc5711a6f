"""Writes the pages of docs/ that are made from code: ``python -m docs.write``.

A test compares each page with what this writes (tests/docs/test_reference.py).
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.writers import benchmarks, commands, configuration, decisions, files, http, metrics, settings

ROOT = Path(__file__).parent
PAGES: Mapping[str, Callable[[], str]] = {
    "benchmarks.md": benchmarks.page,
    "decisions/README.md": decisions.page,
    "reference/commands.md": commands.page,
    "reference/configuration.md": configuration.page,
    "reference/files.md": files.page,
    "reference/settings.md": settings.page,
    "reference/metrics.md": metrics.page,
    "reference/http.md": http.page,
}


def main() -> None:
    """Write them all."""
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())
        print(ROOT / name)
    benchmarks.picture(ROOT / "images" / "ratios.svg")


if __name__ == "__main__":
    main()
