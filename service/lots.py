"""Counts that are added up in lots, as Prometheus reads them.

To count one value at once takes prometheus_client a search, locks, and where several processes serve writes into files.
A request rather notes what is to be counted, in one append, and a thread adds the notes of many up.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter, values
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

T = TypeVar("T")


class LotHistogram(Collector):
    """A histogram to which many values can be added at a time; it is told of as prometheus_client's own is.

    Where several processes serve, its values lie in their shared files under the keys of such a histogram.

    Args:
        name: Of the metric.
        text: What it tells.
        buckets: Upper bounds, ascending.
        labels: Their names.
        known: The values of the labels of each series; all there ever are.
        registry: Takes the metric.
    """

    def __init__(
        self,
        name: str,
        text: str,
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
        labels: Sequence[str] = (),
        known: Sequence[tuple[str, ...]] = ((),),
    ) -> None:
        self._name, self._text, self._labelnames = name, text, tuple(labels)
        self._series = {one: _Series(name, text, self._labelnames, one, buckets) for one in known}
        self._created = time.time()
        registry.register(self)

    def series(self, *label_values: str) -> "_Series":
        """The values of these labels."""
        return self._series[label_values]

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """The metric without values, from which a registry knows its names."""
        return [HistogramMetricFamily(self._name, self._text, labels=self._labelnames)]

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """The metric, as prometheus_client asks for it."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labelnames)
        for label_values, series in self._series.items():
            family.add_metric(label_values, *series.told())
            family.add_sample(
                f"{self._name}_created", dict(zip(self._labelnames, label_values, strict=True)), self._created
            )
        return [family]


class _Series:
    """The sum and the buckets of one series, in whatever prometheus_client keeps values in; safe in any thread."""

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], label_values: tuple[str, ...], buckets: Sequence[float]
    ) -> None:
        self._bounds = np.array([*buckets, np.inf])
        self._les = [floatToGoString(bound) for bound in self._bounds.tolist()]
        self._sum = values.ValueClass("histogram", name, f"{name}_sum", labels, label_values, text)
        self._buckets = [
            values.ValueClass("histogram", name, f"{name}_bucket", (*labels, "le"), (*label_values, le), text)
            for le in self._les
        ]

    def add(self, amounts: np.ndarray) -> None:
        """Count values [N], each in the first bucket whose bound is not below it."""
        places = np.searchsorted(self._bounds, amounts)
        counts = np.bincount(places, minlength=len(self._buckets)).tolist()
        self._sum.inc(float(amounts.sum()))
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(float(count))

    def told(self) -> tuple[list[tuple[str, float]], float]:
        """How many values are not above each bound, and the sum of all."""
        counts = np.cumsum([bucket.get() for bucket in self._buckets]).tolist()
        return list(zip(self._les, counts, strict=True)), self._sum.get()


class LateCounters:
    """Notes by how much counters are to be raised; in any thread."""

    def __init__(self) -> None:
        self._notes: deque[tuple[Counter, float]] = deque()

    def __len__(self) -> int:
        """Notes that no counter shows yet."""
        return len(self._notes)

    def note(self, counter: Counter, amount: float = 1.0) -> None:
        """Have a counter raised, at least 0."""
        self._notes.append((counter, amount))

    def add_up(self) -> None:
        """Raise the counters by all that was noted, each once."""
        amounts: dict[Counter, float] = {}
        for counter, amount in taken(self._notes):
            amounts[counter] = amounts.get(counter, 0.0) + amount
        for counter, amount in amounts.items():
            counter.inc(amount)


def taken(notes: deque[T]) -> Iterator[T]:
    """What was noted so far, taken out; others may note and take meanwhile, and nothing is taken twice."""
    for _ in range(len(notes)):
        try:
            yield notes.popleft()
        except IndexError:  # another thread took it
            return
