"""How much faster one way is than another, on a machine that does other things meanwhile."""

import time
from collections.abc import Callable, Sequence
from statistics import median


def gain_by_turns(
    alone: Callable[[], object],
    together: Callable[[], object],
    *,
    rounds: int,
    of: Callable[[Sequence[float]], float] = median,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """How many times faster ``together`` is, by turns, after one of each that does not count.

    Args:
        of: What is compared of each way's times.

    Example:
        >>> times = iter([0, 9, 9, 10, 10, 14, 14, 16])
        >>> gain_by_turns(lambda: None, lambda: None, rounds=1, clock=lambda: next(times))
        2.0
    """
    times: tuple[list[float], list[float]] = [], []
    for _ in range(1 + rounds):
        for way, took in zip((alone, together), times, strict=True):
            start = clock()
            way()
            took.append(clock() - start)
    return of(times[0][1:]) / of(times[1][1:])
