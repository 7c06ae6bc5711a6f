"""A query embedding meets vectors of its own version alone, encoded ads a heavy ranker of their own schema alone.

Whatever happens between: a day is any sequence of steps, and requests wait in the middle of their work while it goes
on. Every answer is computed again by plain formulas, from the files of exactly the three versions that it names and
from the raw ads as they were while it ran.
"""

from collections import Counter

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

NUMBER = st.integers(0, 1 << 12)
DAYS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), min_size=15, max_size=45)


def run_days(new_host, **how):
    """Many days, each with a store and a host of its own; how often each thing happened."""
    counts = Counter()

    @settings(deadline=None, **how)
    @given(steps=DAYS)
    def run_day(steps):
        with new_host() as host:
            for number, first, second in steps:
                note(host.do(number, first, second))
            host.end()
        counts.update(host.counts)
        assert not host.faults

    run_day()
    return counts


def test_no_answer_mixes_versions_whatever_happens_while_it_is_made(new_host):
    counts = run_days(new_host, max_examples=30, derandomize=True)
    assert counts["answers"] > 100
    for part in ("two_tower", "index", "heavy"):
        assert counts[f"answers after another {part}"] > 10
    assert counts["answers after an update"] > 50
    assert counts["publish refused"] + counts["swap refused"] < counts["publish"] + counts["swap"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_answer_mixes_versions_on_many_days(new_host):
    counts = run_days(new_host, max_examples=500)
    assert counts["answers after another heavy"] > 200
