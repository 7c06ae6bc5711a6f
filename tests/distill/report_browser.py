"""A report in a browser, as tests look at it: its tables read, sorted and filtered."""

import math
from pathlib import Path
from typing import Any

PHONE, DESK = 360, 1280
SLICES = "#slice-table"

_DRAWN = """new Promise(done => {
  const look = () => document.getElementById("explorer").hidden ? setTimeout(look, 10) : done();
  look();
})"""
_ROWS = """[...document.querySelector(%r).tBodies[0].rows].map(row => [...row.cells].map(cell => {
  const copy = cell.cloneNode(true);
  copy.querySelectorAll("small").forEach(note => note.remove());
  return copy.textContent.trim();
}))"""
_MIDDLE = """(() => {
  const box = %s.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})()"""


class ReportBrowser:
    """Opens reports on a ``page`` of a browser."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.run = page.run

    def open(self, file: Path, *, width: int = PHONE, dark: bool = False, script: bool = True) -> None:
        """Show a report; with its script, wait until the table of all slices is drawn."""
        self.page.look(width=width, dark=dark, script=script)
        self.page.open(file)
        if script:
            self.run(_DRAWN)

    def count(self, selector: str) -> int:
        """Number of elements."""
        return self.run(f"document.querySelectorAll({selector!r}).length")

    def is_shown(self, selector: str) -> bool:
        """Whether an element takes any room."""
        return self.run(f"document.querySelector({selector!r}).getClientRects().length > 0")

    def open_details(self) -> None:
        """Open what is folded."""
        self.run("document.querySelectorAll('details').forEach(part => part.open = true)")

    def overflow(self) -> int:
        """How many pixels the page is wider than the screen."""
        return self.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def rows(self, table: str = SLICES) -> list[list[str]]:
        """What the cells of a table show, without the notes under them."""
        return self.run(_ROWS % table)

    def names(self) -> list[str]:
        """First cells of the table of all slices."""
        return [row[0] for row in self.rows()]

    def choose(self, control: str, value: str) -> None:
        """Set a control of the table of all slices."""
        kind = "input" if control == "text" else "change"
        self.run(
            f"(() => {{ const control = document.getElementById('pick-{control}'); control.value = {value!r};"
            f"control.dispatchEvent(new Event({kind!r})); }})()"
        )

    def sort(self, table: str, column: int, *, key: str = "") -> str:
        """Press a heading with the mouse or with a key; returns what it then says of its order."""
        head = f"document.querySelector({table!r}).tHead.rows[0].cells[{column}]"
        if key:
            self.run(f"{head}.querySelector('button').focus()")
            self.page.press(key, "\r" if key == "Enter" else key)
        else:
            self.run(f"{head}.scrollIntoView({{block: 'center', inline: 'center'}})")
            self.page.click(*self.middle(f"{head}.querySelector('button')"))
        return self.run(f"{head}.getAttribute('aria-sort')")

    def orders(self, table: str) -> list[str]:
        """What each heading of a table says of its order."""
        cells = f"document.querySelector({table!r}).tHead.rows[0].cells"
        return self.run(f"[...{cells}].map(cell => cell.getAttribute('aria-sort'))")

    def middle(self, element: str) -> list[float]:
        """Centre of what a JavaScript expression gives, on the screen."""
        return self.run(_MIDDLE % element)


def number(text: str) -> float:
    """A number as the page writes it; NaN where it writes a dash."""
    return math.nan if text == "\u2013" else float(text.replace("\u2212", "-").replace(",", "").removesuffix(" %"))
