"""Deadlines count from when the request arrived."""

import math
import time

from service.deadline import Deadline


def test_no_timeout_is_no_deadline():
    deadline = Deadline.after_ms(None)
    assert deadline.remaining_s() == math.inf
    assert not deadline.has_passed


def test_time_spent_before_counts():
    now = time.monotonic()
    assert Deadline.after_ms(50, start=now - 1).has_passed
    assert not Deadline.after_ms(60_000, start=now - 1).has_passed
    assert Deadline.after_ms(2_000, start=now).at == now + 2
