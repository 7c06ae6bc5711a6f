"""The soak judges what it saw: leaks, failures and runs that show too little are told from a service that is well."""

import argparse
from bisect import bisect_right
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.overload_client import Report, Sample
from benchmarks.soak import FIRST_JUDGED, MAX_GROWTH, Watched, _judged
from benchmarks.soak_memory import Held, by_period, growth

OPTIONS = argparse.Namespace(minutes=20.0, every=60.0, workers=2, set=[])
LOADED = [60.0 * number + 20 for number in range(20)]


def held(at: float, **grown: float) -> Held:
    plain = {"pss": 700.0, "rss": 900.0, "anonymous": 600.0, "files": 90, "sockets": 20, "threads": 18, "gone": 1}
    return Held(at=at, **{name: value + grown.get(name, 0) for name, value in plain.items()})


def watched(**per_release: float) -> Watched:
    """Two workers over twenty minutes; each value grows by so much with each release, and swings a little."""
    seen = Watched(loaded=LOADED, updates=1_190)
    for worker in range(2):
        seen.held[worker] = [
            held(at, **{name: by * (at // 60) + (at % 3) / 3 for name, by in per_release.items()})
            for at in range(0, 1_200, 5)
        ]
    return seen


def judged(seen: Watched, statuses=(200, 200), load: float = 0.7, **changed: object) -> dict[str, bool]:
    """Whether each target is met."""
    report = Report(
        [Sample(due=float(at), sent=at, done=at + 0.01, status=status) for at, status in enumerate(statuses)], 1.0, 0.1
    )
    options = argparse.Namespace(**{**vars(OPTIONS), **changed})
    _, targets = _judged(report, seen, 100 * load, 100.0, options)
    return {target.name: target.met for target in targets}


def missed(met: dict[str, bool]) -> list[str]:
    return [name for name, is_met in met.items() if not is_met]


def test_a_service_that_is_well_meets_every_target():
    assert missed(judged(watched(pss=0.0, files=0.0))) == []


@pytest.mark.parametrize(
    ("leak", "told"),
    [
        ({"pss": 2.0}, "growth of PSS"),
        ({"anonymous": 2.0}, "growth of anonymous memory"),
        ({"files": 1.0}, "descriptors of files"),
        ({"threads": 1.0}, "threads more"),
        ({"gone": 1.0}, "mapped files"),
    ],
)
def test_a_little_that_leaks_with_each_release_is_told(leak, told):
    (name,) = missed(judged(watched(**leak)))
    assert name.startswith(told)


def in_turns(leak: float) -> Watched:
    """Who writes the overlay holds 55 MiB more and changes with each release, memory swings; as drawn once."""
    seen, rng = watched(anonymous=leak), np.random.default_rng(0)
    writes, swings = rng.integers(0, 2, len(LOADED)), rng.normal(0, 6, len(LOADED))
    for worker, samples in seen.held.items():
        for place, sample in enumerate(samples):
            release = max(0, bisect_right(LOADED, sample.at) - 1)
            own = int(writes[release] == (worker == 0))
            samples[place] = replace(
                sample, writes=own, anonymous=sample.anonymous + 55 * own + (swings[release] if worker == 0 else 0)
            )
    return seen


def test_who_writes_the_overlay_is_no_growth_and_hides_none():
    assert missed(judged(in_turns(0.0))) == []
    assert missed(judged(in_turns(2.0))) == ["growth of anonymous memory after the third release"]
    periods = by_period(in_turns(0.0).held[0], LOADED)[FIRST_JUDGED - 1 :]
    assert growth([one.anonymous for one in periods]) > MAX_GROWTH  # of a worker that is well, all periods alike


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"statuses": (200, 503)}, "requests that failed"),
        ({"statuses": (200, 0)}, "requests that failed"),
        ({"load": 0.5}, "load"),
        ({"workers": 1}, "workers that were lost"),
    ],
)
def test_failures_and_less_load_than_asked_for_are_told(changed, told):
    assert missed(judged(watched(), **changed)) == [told]


def test_a_run_in_which_little_happened_passes_for_nothing():
    idle = watched()
    idle.loaded, idle.updates = LOADED[:4], 500
    assert {"releases loaded", "lots of updates", "growth of PSS after the third release"} <= set(missed(judged(idle)))
    idle.loaded = []
    assert len(missed(judged(idle))) == 7
    idle.held = {}
    assert len(missed(judged(idle))) >= 7
    assert by_period([held(1.0)], []) == []


def test_errors_of_the_jobs_are_told():
    seen = watched()
    seen.errors.append("TimeoutError: release r does not serve alone")
    assert missed(judged(seen)) == ["errors of the jobs"]
