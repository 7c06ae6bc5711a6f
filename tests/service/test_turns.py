"""Turns on the event loop: in the order of asking, alone or together with those who wait behind."""

import asyncio

import pytest

from service.turns import Turns


def test_between_two_turns_the_loop_does_what_came_meanwhile():
    order, turns = [], Turns(list)

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
    turns = Turns(list)

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
        turns = Turns(list)


class Together:
    """Answers numbers by their doubles; a negative one gets an error, and a group with a zero fails as a whole."""

    def __init__(self):
        self.groups = []

    def __call__(self, group):
        self.groups.append(list(group))
        if 0 in group:
            raise RuntimeError("all of them")
        return [ValueError(str(number)) if number < 0 else 2 * number for number in group]


def all_at_once(turns, numbers, *, most, cancelled=(), after=0):
    async def run():
        tasks = [asyncio.create_task(turns.ask(number, most)) for number in numbers]
        for _ in range(after):
            await asyncio.sleep(0)
        for place in cancelled:
            tasks[place].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(run())


@pytest.mark.parametrize("most", [1, 2, 4, 100])
def test_those_who_wait_are_answered_together_each_with_its_own(most):
    together, numbers = Together(), [3, 1, -4, 5, 9, 2, -6, 7, 8]
    found = all_at_once(Turns(together), numbers, most=most)
    for number, answer in zip(numbers, found, strict=True):
        assert answer == 2 * number if number > 0 else str(answer) == str(number)
    assert [number for group in together.groups for number in group] == numbers
    assert [len(group) for group in together.groups] == [min(most, 9 - first) for first in range(0, 9, most)]


def test_a_group_that_fails_fails_for_those_in_it_alone():
    together = Together()
    found = all_at_once(Turns(together), [1, 2, 0, 3, 4, 5], most=2)
    assert found[:2] + found[4:] == [2, 4, 8, 10]
    assert [str(error) for error in found[2:4]] == ["all of them"] * 2


@pytest.mark.parametrize("after", range(7))
@pytest.mark.parametrize("cancelled", [(0,), (1,), (2,), (3,), (0, 1), (2, 3, 4), (0, 1, 2, 3, 4)])
def test_who_goes_away_holds_nobody_up(cancelled, after):
    together, numbers = Together(), [1, 2, 3, 4, 5]
    turns = Turns(together)
    found = all_at_once(turns, numbers, most=2, cancelled=cancelled, after=after)
    for place, (number, answer) in enumerate(zip(numbers, found, strict=True)):
        assert answer == 2 * number or (place in cancelled and isinstance(answer, asyncio.CancelledError))
    assert all_at_once(turns, [7], most=2) == [14]


def test_work_alone_keeps_its_place_among_those_who_ask_together():
    together = Together()
    turns = Turns(together)

    async def run():
        asked = [asyncio.create_task(turns.ask(number, 10)) for number in (1, 2)]
        alone = asyncio.create_task(turns.run(together.groups.append, "alone"))
        more = [asyncio.create_task(turns.ask(number, 10)) for number in (3, 4)]
        await alone
        return [await task for task in asked + more]

    assert asyncio.run(run()) == [2, 4, 6, 8]
    assert together.groups == [[1, 2], "alone", [3, 4]]
