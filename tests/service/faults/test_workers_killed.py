"""Workers and supervisors are killed under load: others answer, counts stay, nothing is left behind."""

import os
import signal
import time
from contextlib import suppress

import httpx
import pytest

from processes import LONG_S
from service.serving_metrics import TELL_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ANSWERED = 'adsieve_rank_requests_total{status="200"}'


def test_killed_workers_cost_what_they_held_and_leave_no_descriptor(serve, own_world, processes, body):
    service = serve(own_world.root, "--workers", "3").wait_ready(3)
    service.rank(body)
    before = processes.descriptors(service.process.pid)
    with processes.Asking(service, body, threads=3) as asking:
        at_risk = 0  # of being lost with a worker, which adds up what it counts now and then
        for _ in range(6):
            had = asking.statuses.count(200)
            time.sleep(4 * TELL_S)
            killed = service.workers()[0]
            os.kill(killed, signal.SIGKILL)
            assert 200 in asking.wait_for(5)  # the others answer
            processes.eventually(lambda killed=killed: killed not in service.workers(), "it is not buried")
            at_risk += asking.statuses.count(200) - had
            service.wait_ready(3)
    time.sleep(4 * TELL_S)
    assert set(asking.statuses) <= {200, 0}
    assert asking.statuses.count(0) <= 6 * 3
    counted = service.metrics()[ANSWERED] - 1
    assert asking.statuses.count(200) - at_risk <= counted <= len(asking.statuses)
    assert service.metrics()["adsieve_processes"] == 3
    assert service.metrics()["adsieve_rank_in_flight"] == 0
    assert processes.descriptors(service.process.pid) == before
    (counts,) = service.temporary.glob("adsieve-counts-*")
    alive = {str(pid) for pid in service.workers()}
    assert {path.stem for path in counts.glob("*.state")} == alive
    assert {path.stem for path in counts.glob("*.lock")} == {*alive, "supervisor"}


def test_a_stalled_worker_does_not_stop_the_others(serve, own_world, processes, body):
    service = serve(own_world.root, "--workers", "2").wait_ready(2)
    stalled, _ = service.workers()
    os.kill(stalled, signal.SIGSTOP)
    answered = 0
    end = time.monotonic() + LONG_S
    while answered < 5 and time.monotonic() < end:
        with suppress(httpx.TransportError):  # one that the stalled one had taken
            answered += service.request("POST", "/rank", json=body).status_code == 200
    os.kill(stalled, signal.SIGCONT)
    assert answered == 5
    service.wait_ready(2)


def test_a_killed_supervisor_takes_its_workers_along_and_its_counts_go_at_the_next_start(
    serve, own_world, processes, body
):
    service = serve(own_world.root, "--workers", "2").wait_ready(2)
    (counts,) = service.temporary.glob("adsieve-counts-*")
    workers = service.workers()
    with processes.Asking(service, body):
        service.process.kill()
        service.process.wait()
        processes.eventually(lambda: not any(processes.command_line(pid) for pid in workers), "a worker lives on")
    assert counts.exists()
    service.start().wait_ready(2)
    assert not counts.exists()
    assert len(list(service.temporary.glob("adsieve-counts-*"))) == 1
    service.rank(body)
    assert service.metrics()[ANSWERED] == 1
