"""The metrics as a reader of the report meets them: their names, which way is better, and how they are written."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

UNDEFINED, MINUS = "\u2013", "\u2212"

Better = Literal["lower", "higher", "one"]


@dataclass(frozen=True)
class Metric:
    """A column of the slice tables.

    Args:
        key: Field of ``SliceMetrics``.
        label: Heading.
        better: Whether lower or higher is better, or the nearer to one.
        help: One sentence for the heading.
    """

    key: str
    label: str
    better: Better
    help: str


METRICS = (
    Metric("kl", "KL", "lower", "Divergence of the student's probability from the teacher's; 0 is a perfect copy"),
    Metric("log_mae", "LogMAE", "lower", "Mean absolute difference of log probabilities; .1 is about 10 % off"),
    Metric("normalised_entropy", "NE", "lower", "Cross entropy over that of always predicting the mean"),
    Metric("auc", "AUC", "higher", "Chance that a positive ranks above a negative, over all pairs"),
    Metric("gauc", "GAUC", "higher", "AUC within a request, averaged over requests"),
    Metric("calibration", "calibration", "one", "Sum of predictions over sum of labels; above 1 predicts too much"),
)
BY_KEY: Mapping[str, Metric] = {metric.key: metric for metric in METRICS}


def stands_out(better: Better, interval: tuple[float, float], whole: float) -> bool:
    """Whether an interval lies wholly on the worse side of the whole stage's value; for calibration, wholly off 1.

    Example:
        >>> stands_out("lower", (0.2, 0.3), 0.1), stands_out("one", (0.98, 1.2), 1.0)
        (True, False)
    """
    low, high = interval
    match better:
        case "lower":
            return low > whole
        case "higher":
            return high < whole
        case "one":
            return low > 1.0 or high < 1.0


def format_number(value: float, digits: int = 4) -> str:
    r"""A number for people; a dash where it is undefined.

    Example:
        >>> format_number(0.00012345), format_number(12345.6), format_number(float("nan"))
        ('0.0001234', '12,346', '\u2013')
    """
    if not math.isfinite(value):
        return UNDEFINED
    text = f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"
    return text.replace("-", MINUS)


def format_percent(share: float, digits: int = 3) -> str:
    """A share in per cent.

    Example:
        >>> format_percent(0.00421), format_percent(1.0)
        ('0.421 %', '100 %')
    """
    return f"{format_number(100 * share, digits)} %" if math.isfinite(share) else UNDEFINED


def format_with_interval(
    value: float, interval: Sequence[float], *, percent: bool = False, digits: int = 3, sign: bool = False
) -> tuple[str, str]:
    """A value and both ends of its interval, to two digits of the interval's width: more would be noise.

    Args:
        value: To ``digits`` significant digits where the interval is undefined, whose text is empty then.
        interval: Low and high.
        percent: Whether they are shares, to be written in per cent.
        digits: Without an interval.
        sign: Whether a positive value gets a plus.

    Example:
        >>> format_with_interval(0.0006061, (0.0002138, 0.0009984))
        ('0.00061', '0.00021 to 0.00100')
        >>> format_with_interval(0.0123, (0.005, 0.02), percent=True, sign=True)
        ('+1.2 %', '0.5 to 2.0 %')
    """
    factor, unit = (100.0, " %") if percent else (1.0, "")
    plus = "+" if sign and value > 0 else ""
    low, high = interval
    places = decimals(factor * low, factor * high, most=4 if percent else 9)
    if not math.isfinite(value) or places is None:
        return plus + (format_percent if percent else format_number)(value, digits), ""
    shown, *ends = (f"{factor * number:.{places}f}".replace("-", MINUS) for number in (value, low, high))
    return f"{plus}{shown}{unit}", f"{ends[0]} to {ends[1]}{unit}"


def decimals(low: float, high: float, most: int = 9) -> int | None:
    """Decimal places that show two digits of an interval's width; None where it has none.

    Args:
        low, high: Ends of the interval.
        most: Places, of which the larger end shows five significant digits at the most.

    Example:
        >>> decimals(0.95, 0.97), decimals(0.0, 120.0), decimals(0.5, 0.5), decimals(0.99999998, 1.0)
        (3, 0, None, 4)
    """
    width = high - low
    if not math.isfinite(width) or width <= 0:
        return None
    significant = 4 - math.floor(math.log10(max(abs(low), abs(high))))
    return max(0, min(1 - math.floor(math.log10(width)), significant, most))
