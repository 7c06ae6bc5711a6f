"""The page of benchmarks: a picture of measured ratios, with the command behind each, from docs/results/ratios.json."""

import json
import re
from pathlib import Path
from typing import Any

from docs.writers.markdown import table

RESULTS = Path(__file__).parents[1] / "results"
HEAD = """# Benchmarks

How many times as fast as what one would write first, each measured in interleaved blocks of one run, on two cores of
an AMD EPYC without a GPU. Bars that end before their mark miss their target; the pages say by how much and why.

![Times as fast, against targets](images/ratios.svg)

"""
TAIL = """
`python -m benchmarks.NAME` prints medians, ratios, schedule and machine; `--json` is for machines, and `--check` exits
with 1 where a target is missed. `make bench` runs them all. [Results](results/README.md) lists every page, also those
about quality and faults.
"""


def ratios() -> list[dict[str, Any]]:
    """What was measured, against what, with the target and the page that tells of it."""
    return json.loads((RESULTS / "ratios.json").read_text())


def command(page: str) -> str:
    """The command that a page of results was made with, as their index says."""
    line = re.search(rf"^\| \[{page}\]\({page}\.md\) \| `([^`]+)`", (RESULTS / "README.md").read_text(), re.MULTILINE)
    if line is None:
        raise KeyError(f"docs/results/README.md lists no page {page}")
    return line[1]


def page() -> str:
    """The whole page."""
    rows = [
        (
            one["what"],
            one["against"],
            f"{one['times']:g}",
            "" if one["asked"] is None else f"{one['asked']:g}",
            f"[{one['page']}](results/{one['page']}.md)",
            f"`{command(one['page'])}`",
        )
        for one in ratios()
    ]
    return HEAD + table(("what", "against", "times as fast", "asked", "page", "command"), rows) + TAIL


def picture(path: Path) -> None:
    """Bars on a logarithmic scale, with a mark at each target."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "adsieve", "font.size": 10, "svg.fonttype": "none"})
    from matplotlib import pyplot

    found = ratios()[::-1]
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(found) + 0.9), layout="constrained")
    colors = ["#b7791f" if one["asked"] and one["times"] < one["asked"] else "#4451a8" for one in found]
    bars = axes.barh([one["what"] for one in found], [one["times"] for one in found], color=colors, height=0.6)
    axes.bar_label(bars, fmt="%g", padding=4)
    for place, one in enumerate(found):
        if one["asked"]:
            axes.plot([one["asked"]] * 2, [place - 0.42, place + 0.42], color="#1c2330", linewidth=2)
    axes.set(xscale="log", xlim=(1, 1.6 * max(one["times"] for one in found)), xlabel="times as fast (mark: asked)")
    axes.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None}, facecolor="#fbfcfe")
    pyplot.close(figure)
