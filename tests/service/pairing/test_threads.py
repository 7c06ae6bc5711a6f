"""The same with everything at once: requests, the follower and the updates in threads that wait for nobody."""

import threading
import time
from contextlib import contextmanager

import numpy as np

from contracts.errors import AdsieveError

NUM_REQUESTERS, NUM_STEPS = 3, 60
SLOWEST_S = 0.01
"""Of the pauses within a request: longer than the one between two looks at the store."""
STEPS = (
    "publish",
    "publish",
    "rollback",
    "reencode",
    "build",
    "prune",
    "takedown",
    "status",
    "bid",
    "content",
    "content",
)


@contextmanager
def repeating(*works):
    """Do each work again and again in a thread of its own; the first error comes out at the end."""
    stop, errors = threading.Event(), []

    def repeat(work):
        number = 0
        while not stop.is_set():
            try:
                work(number)
            except Exception as error:
                errors.append(error)
                return
            number += 1

    threads = [threading.Thread(target=repeat, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def requester(host, worker):
    """Asks without end; its models are slow, some more than others."""
    rng = np.random.default_rng(worker)

    def ask(number):
        host.judge_answer(
            host.take_off(NUM_REQUESTERS * number + worker, lambda: time.sleep(rng.uniform(0, SLOWEST_S)))
        )

    return ask


def test_no_answer_mixes_versions_while_threads_follow_the_store(new_host):
    rng = np.random.default_rng(0)
    with new_host() as host:

        def follow(number):
            host.poll(0, 0)
            time.sleep(SLOWEST_S / 2)

        def update(number):
            host.apply(0, 0)
            time.sleep(SLOWEST_S / 2)

        requesters = [requester(host, worker) for worker in range(NUM_REQUESTERS)]
        with repeating(follow, update, *requesters) as errors:
            for _ in range(NUM_STEPS):
                before = host.counts["answers"]
                try:
                    getattr(host, str(rng.choice(STEPS)))(*rng.integers(0, 1 << 12, 2).tolist())
                except AdsieveError:  # an index lacks updates that a prune dropped
                    host.counts["refused"] += 1
                while host.counts["answers"] == before and not errors:
                    time.sleep(SLOWEST_S / 10)
        host.end()
    assert not host.faults
    assert host.counts["refused"] < NUM_STEPS / 4
    for part in ("two_tower", "index", "heavy"):
        assert host.counts[f"answers after another {part}"] > 5
