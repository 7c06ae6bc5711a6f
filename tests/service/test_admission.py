"""Limits of what is in flight and in line, and turns on the event loop."""

import asyncio
from contextlib import ExitStack

import pytest

from service.admission import Admission, Turns
from service.problems import HttpProblem


@pytest.fixture
def limits(settings):
    return settings.model_copy(update={"max_in_flight": 5, "max_waiting": 2})


def test_what_is_in_flight_is_told_and_limited(limits):
    told = []
    admission = Admission(limits, told.append)
    with ExitStack() as stack:
        stack.enter_context(admission.admitted(4))
        with pytest.raises(HttpProblem, match="4 requests are in flight"):
            stack.enter_context(admission.admitted(2))
        stack.enter_context(admission.admitted())
    with admission.admitted(5):
        pass
    assert told == [4, 5, 4, 0, 5, 0]


def test_a_burst_may_stand_in_line_and_a_line_that_never_empties_is_kept_short(limits):
    admission = Admission(limits, lambda count: None)
    with ExitStack() as one, ExitStack() as two, ExitStack() as others:
        for place in (one, two, others, others):
            place.enter_context(admission.in_line())
        one.close()  # one was answered, as many as may wait were not
        others.enter_context(admission.in_line())
        with admission.admitted():
            pass
        two.close()
        for refuses in (admission.admitted, admission.in_line):
            with pytest.raises(HttpProblem, match="3 requests wait and more come than can be answered") as refused:
                others.enter_context(refuses())
            assert (refused.value.status, refused.value.kind) == (503, "overloaded")
        others.close()
        with ExitStack() as last:  # the line was empty, but 3 were answered since one was refused
            for _ in range(2):
                last.enter_context(admission.in_line())
            with pytest.raises(HttpProblem, match="2 requests wait"):
                last.enter_context(admission.in_line())
        for _ in range(2):
            with admission.in_line():
                pass
        with ExitStack() as last:  # calm enough for another burst
            for _ in range(4):
                last.enter_context(admission.in_line())


def test_in_an_overload_as_many_wait_as_may(limits):
    admission = Admission(limits, lambda count: None)
    waiting = [ExitStack() for _ in range(6)]
    for stack in waiting[:4]:
        stack.enter_context(admission.in_line())
    for stack in waiting[:3]:
        stack.close()
    waiting[4].enter_context(admission.in_line())  # one of two places is free
    with pytest.raises(HttpProblem, match="2 requests wait"):
        waiting[5].enter_context(admission.in_line())
    for stack in waiting:
        stack.close()


def test_between_two_turns_the_loop_does_what_came_meanwhile():
    order, turns = [], Turns()

    async def ask(name, expects=()):
        await turns.run(order.append, name)
        for other in expects:
            order.append(other)

    async def run():
        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(ask(name)) for name in "abc"]
        loop.call_soon(lambda: loop.call_soon(lambda: loop.call_soon(order.append, "news")))
        await asyncio.gather(*tasks)
        await ask("d")

    asyncio.run(run())
    assert [name for name in order if name != "news"] == ["a", "b", "c", "d"]
    assert order.index("news") < order.index("c")


def test_a_turn_of_one_that_was_cancelled_goes_to_the_next_and_errors_end_a_turn():
    turns = Turns()

    def fail():
        raise ValueError("broken")

    async def run(cancelled):
        tasks = [asyncio.create_task(turns.run(int, str(number))) for number in range(5)]
        for _ in range(cancelled):
            await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[2].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(ValueError, match="broken"):
            await turns.run(fail)
        assert await turns.run(int, "7") == 7
        return results

    for cancelled in range(6):
        results = asyncio.run(run(cancelled))
        numbers = [result for result in results if isinstance(result, int)]
        assert numbers == [number for number, result in enumerate(results) if isinstance(result, int)]
        assert {1, 3, 4} <= set(numbers)
        turns = Turns()
