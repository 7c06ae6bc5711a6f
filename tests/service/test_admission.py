"""Limits of what is in flight and in line."""

from contextlib import ExitStack

import pytest

from service.admission import Admission
from service.problems import HttpProblem


@pytest.fixture
def limits(settings):
    return settings.model_copy(update={"max_in_flight": 5, "max_waiting": 2})


def test_what_is_in_flight_is_counted_and_limited(limits):
    admission = Admission(limits)
    with ExitStack() as stack:
        stack.enter_context(admission.admitted(4))
        with pytest.raises(HttpProblem, match="requests in flight: 4,"):
            stack.enter_context(admission.admitted(2))
        assert admission.in_flight == 4
        stack.enter_context(admission.admitted())
        assert admission.in_flight == 5
    assert admission.in_flight == 0
    with admission.admitted(5):
        assert admission.in_flight == 5
    assert admission.in_flight == 0


def test_a_burst_may_stand_in_line_and_a_line_that_never_empties_is_kept_short(limits):
    admission = Admission(limits)
    with ExitStack() as one, ExitStack() as two, ExitStack() as others:
        for place in (one, two, others, others):
            place.enter_context(admission.in_line())
        one.close()  # one was answered, as many as may wait were not
        others.enter_context(admission.in_line())
        with admission.admitted():
            pass
        two.close()
        for refuses in (admission.admitted, admission.in_line):
            with pytest.raises(
                HttpProblem, match="requests that wait: 3, and more come than can be answered"
            ) as refused:
                others.enter_context(refuses())
            assert (refused.value.status, refused.value.kind) == (503, "overloaded")
        others.close()
        with ExitStack() as last:  # the line was empty, but 3 were answered since one was refused
            for _ in range(2):
                last.enter_context(admission.in_line())
            with pytest.raises(HttpProblem, match="requests that wait: 2,"):
                last.enter_context(admission.in_line())
        for _ in range(20):
            with admission.in_line():
                pass
        with ExitStack() as last:  # not long enough ago
            for _ in range(2):
                last.enter_context(admission.in_line())
            with pytest.raises(HttpProblem, match="requests that wait: 2,"):
                admission.join()
        for _ in range(32):
            with admission.in_line():
                pass
        with ExitStack() as last:  # calm enough for another burst
            for _ in range(4):
                last.enter_context(admission.in_line())


def test_in_an_overload_as_many_wait_as_may_and_three_quarters_once_one_was_refused(limits):
    admission = Admission(limits.model_copy(update={"max_waiting": 4, "max_in_flight": 20}))
    waiting = [ExitStack() for _ in range(8)]
    for stack in waiting[:7]:
        stack.enter_context(admission.in_line())
    for stack in waiting[:4]:
        stack.close()
    waiting[7].enter_context(admission.in_line())  # one of four places is free
    with pytest.raises(HttpProblem, match="requests that wait: 4,"):
        admission.admit()
    waiting[4].close()
    with pytest.raises(HttpProblem, match="requests that wait: 3,"):
        admission.join()
    waiting[5].close()
    waiting[5].enter_context(admission.in_line())
    for stack in waiting:
        stack.close()
    with ExitStack() as again:  # the line was empty
        for _ in range(4):
            again.enter_context(admission.in_line())


def test_a_line_of_one_place_keeps_it(limits):
    admission = Admission(limits.model_copy(update={"max_waiting": 1}))
    with ExitStack() as held:
        held.enter_context(admission.in_line())
        with admission.in_line():
            pass
        for _ in range(2):
            with pytest.raises(HttpProblem, match="requests that wait: 1,"):
                admission.join()
    for _ in range(2):
        with admission.in_line():
            pass
