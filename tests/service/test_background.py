"""Work behind requests has a thread of its own, further behind than the others."""

import os
import sys
import threading

import pytest

from service.background import NICENESS, behind_requests


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads have priorities of their own on Linux")
def test_it_runs_behind_and_leaves_the_others_where_they_are() -> None:
    own = niceness()
    thread, found = behind_requests(lambda: (threading.get_native_id(), niceness()), threads_of_engine=1)
    assert thread != threading.get_native_id()
    assert found == min(own + NICENESS, 19)
    assert niceness() == own
    assert behind_requests(niceness, threads_of_engine=1) == min(own + NICENESS, 19)  # a thread anew


def test_what_may_open_an_engine_of_several_threads_stays_where_it_is() -> None:
    assert behind_requests(threading.get_native_id, threads_of_engine=2) == threading.get_native_id()


@pytest.mark.parametrize("threads", [1, 2])
def test_its_error_is_raised(threads: int) -> None:
    with pytest.raises(ZeroDivisionError):
        behind_requests(lambda: 1 // 0, threads_of_engine=threads)
