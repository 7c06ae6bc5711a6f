"""The same values counted in lots and one by one; imports little, as a process of its own runs it."""

import numpy as np
from prometheus_client import Histogram

from service.lots import LotHistogram

BUCKETS = (0, 0.5, 1, 2.5, 1_000_000)
KNOWN = [("light",), ("heavy",)]


def drawn(seed: int, count: int) -> np.ndarray:
    """Values whose sums are exact, many of them on a bound, some beyond the last."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.integers(-512, 4096, count) / 1024, rng.choice([*BUCKETS, 2e6], count)])
    return rng.permutation(values)


def counted(registry, seed: int, *, in_lots: bool) -> None:
    """A labelled histogram and one without labels of the same values, and the same series of both ways."""
    for name, labels, known in (("labelled", ["stage"], KNOWN), ("plain", [], [()])):
        if in_lots:
            ours = LotHistogram(name, "A text.", labels=labels, known=known, buckets=BUCKETS, registry=registry)
            series = [ours.series(*one) for one in known]
        else:
            theirs = Histogram(name, "A text.", labels, buckets=BUCKETS, registry=registry)
            series = [theirs.labels(*one) if one else theirs for one in known]
        for number, one in enumerate(series):
            values = drawn(10 * seed + number, 50)
            if in_lots:
                for lot in np.split(values, [0, 1, 1, 30]):
                    one.add(lot)
            else:
                for value in values.tolist():
                    one.observe(value)
