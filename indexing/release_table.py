"""The releases of a scenario for people, a few lines each, within the width of a terminal."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from indexing.listing import Listed

_SKEW_S = 60
"""By which clocks may differ."""
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def release_table(scenario: str, releases: Sequence[Listed]) -> Table:
    """What ``adsieve index list`` prints of a scenario."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(Text(scenario), no_wrap=True)
    table.add_column("release, its bundles and index, metrics of its replay")
    for one in releases:
        table.add_row(*(Text("\n".join(lines), overflow="fold") for lines in (_state(one), _about(one))))
        table.add_row()
    return table


def age(seconds: float) -> str:
    """Two units of a duration; a time that lies ahead, as after a clock moved back, counts as now.

    Example:
        >>> age(93_600), age(59), age(-5)
        ('1 d 2 h', '59 s', '0 s')
    """
    rest = max(int(seconds), 0)
    shown: list[tuple[int, str]] = []
    for name, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or shown:
            shown.append((count, name))
    return " ".join(f"{count} {name}" for count, name in shown[:2] if count) or "0 s"


def data_age(seconds: float) -> str:
    """Age of a watermark; one that lies ahead says nothing of how old data is, and is told as such.

    Example:
        >>> data_age(93_600), data_age(-93_600)
        ('data 1 d 2 h old', 'data of unknown age, its latest is 1 d 2 h ahead')
    """
    if seconds >= -_SKEW_S:
        return f"data {age(seconds)} old"
    return f"data of unknown age, its latest is {age(-seconds)} ahead"


def grouped(metrics: Mapping[str, float]) -> list[str]:
    """Metrics as texts, those of several heads together.

    Example:
        >>> grouped({"overlap": 0.98765, "calibration_heavy.click": 0.9, "calibration_heavy.conversion": 1.0})
        ['overlap 0.9877', 'calibration_heavy: click 0.9, conversion 1']
    """
    groups: dict[str, list[str]] = {}
    for name, value in metrics.items():
        kind, _, head = name.partition(".")
        groups.setdefault(kind, []).append(f"{head} {value:.4g}".lstrip())
    return [
        f"{kind}{':' if f'{kind}.' in ' '.join(metrics) else ''} {', '.join(told)}" for kind, told in groups.items()
    ]


def _state(one: Listed) -> list[str]:
    data = [] if one.watermark_age_s is None else [data_age(one.watermark_age_s)]
    return [one.state + ", pinned" * one.pinned, f"{age(one.age_s)} old", *data]


def _about(one: Listed) -> list[str]:
    release = one.release
    parts = [release.two_tower, release.heavy or "no heavy bundle", release.index]
    told = [release.release_id, ", ".join(parts), "; ".join(grouped(release.metrics))]
    if release.judgement is not None and release.judgement.override is not None:
        told.append(f"published all the same: {release.judgement.override}")
    return [line for line in told if line]
