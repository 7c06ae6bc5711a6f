"""What fails about a host: its clock jumps, its disks fill up."""

import shutil
import subprocess
import time
from contextlib import suppress

import pytest

from indexing.update_record import Update

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* CLOCK_REALTIME is set by the seconds in the file CLOCK_FILE; other clocks go on as they are. */
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*original)(clockid_t, struct timespec *);
    if (!original) original = dlsym(RTLD_NEXT, "clock_gettime");
    int result = original(id, now);
    const char *path = getenv("CLOCK_FILE");
    if (id == CLOCK_REALTIME && path) {
        long seconds = 0;
        FILE *file = fopen(path, "r");
        if (file) {
            if (fscanf(file, "%ld", &seconds) != 1) seconds = 0;
            fclose(file);
        }
        now->tv_sec += seconds;
    }
    return result;
}
"""
DAY_S = 86_400


@pytest.fixture
def clock(tmp_path):
    """Variables that let a process see another time, and what sets it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a clock that jumps is made with a C compiler, and there is none")
    (tmp_path / "clock.c").write_text(CLOCK)
    library, offset = tmp_path / "clock.so", tmp_path / "offset"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True)

    def set_to(seconds):
        unfinished = tmp_path / "offset.new"
        unfinished.write_text(str(seconds))
        unfinished.replace(offset)

    set_to(0)
    return {"LD_PRELOAD": str(library), "CLOCK_FILE": str(offset)}, set_to


def test_a_clock_that_jumps_stops_no_request_and_makes_no_index_old(serve, own_world, clock, processes, body):
    variables, set_to = clock
    hours = (time.time() - 1_767_225_600) / 3_600 + 48  # the catalogue is of 2026-01-01: two days are left
    service = serve(
        own_world.root,
        "--workers",
        "2",
        ADSIEVE_MAX_INDEX_AGE_H=str(hours),
        ADSIEVE_OLD_INDEX="refuse",
        ADSIEVE_TIMEOUT_MS="20000",
        **variables,
    ).wait_ready(2)
    released = 'adsieve_release_age_seconds{scenario="shopping"}'
    updated = 'adsieve_update_position{scenario="shopping"}'
    before = service.metrics()
    with processes.Asking(service, body) as asking:
        for jump in (30 * DAY_S, -300 * DAY_S, 3_600, -3_600, 0):
            set_to(jump)
            assert set(asking.wait_for(20)) == {200}
            ready, metrics = service.ready(), service.metrics()
            assert (ready["ready"], ready["old"], ready["faults"], ready["refused"]) == (True, [], [], [])
            assert metrics['adsieve_index_old{scenario="shopping"}'] == 0
            assert metrics["adsieve_ready_processes"] == 2
            assert metrics[released] >= 0
            own_world.store.append_updates([Update(ad_id="shopping-1", at=0, bid=float(1 + abs(jump)))])
            position = own_world.store.update_log().end.seq
            processes.eventually(
                lambda position=position: service.metrics()[updated] == position, "an update is not in effect"
            )
    assert set(asking.statuses) == {200}
    after = service.metrics()
    assert after['adsieve_index_age_seconds{scenario="shopping"}'] - before[
        'adsieve_index_age_seconds{scenario="shopping"}'
    ] == pytest.approx(0, abs=600)


def fill(disk):
    """Leave no room."""
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(1_024))


def test_a_full_disk_under_the_feedback_log_costs_lines_of_it_and_no_answer(
    serve, own_world, small_disk, processes, body
):
    disk = small_disk(2)
    service = serve(own_world.root, ADSIEVE_FEEDBACK_DIR=str(disk / "log"), ADSIEVE_FEEDBACK_SECONDS="0.2")
    service.wait_ready()
    written = 'adsieve_feedback_requests_total{result="written"}'
    lost = 'adsieve_feedback_requests_total{result="failed"}'

    def ask_until(name, more):
        before = service.metrics()[name]

        def holds():
            service.rank(body)
            return service.metrics()[name] >= before + more

        processes.eventually(holds, f"{name} does not grow")

    ask_until(written, 3)
    fill(disk)
    ask_until(lost, 3)
    assert service.ready()["ready"] is True
    assert service.metrics()[lost] >= 3
    (disk / "filler").unlink()
    ask_until(written, 3)


def test_a_full_disk_under_the_overlay_holds_updates_up_and_no_answer(serve, own_world, small_disk, processes, body):
    disk = small_disk(8)
    service = serve(own_world.root)
    service.kill()
    service.directory = disk
    service.start().wait_ready()
    assert "shopping-1" in service.rank(body)["ads"]["ids"]
    fill(disk)
    updates = [Update(ad_id=f"shopping-{number}", at=number, bid=float(number)) for number in range(1, 40)]
    contents = [new_ad(number) for number in range(2_000)]
    own_world.store.append_updates([*updates, *contents, Update(ad_id="shopping-1", at=1, takedown=True)])
    end = own_world.store.update_log().end.seq
    waiting = 'adsieve_updates_waiting{scenario="shopping"}'
    processes.eventually(lambda: "updates" in service.faults(), "no fault is told")
    processes.eventually(lambda: service.metrics()[waiting] > 0, "no update is told to wait")
    assert service.ready()["ready"] is True
    assert service.rank(body)["degraded"] is None
    assert service.metrics()['adsieve_follow_failures_total{what="updates"}'] >= 1
    (disk / "filler").unlink()
    position = 'adsieve_update_position{scenario="shopping"}'
    processes.eventually(lambda: service.metrics()[position] == end, "the updates are not in effect")
    assert service.faults() == {}
    assert "shopping-1" not in service.rank(body)["ads"]["ids"]
    assert service.rank(body | {"candidates": ["new-7"]})["ads"]["ids"] == ["new-7"]


def new_ad(number):
    from indexing.update_record import Content

    features = {"ad_key": f"new-{number}", "tags": ["t1"], "price": 1.0}
    content = Content(scenario="shopping", valid_from=10**15 * 2, objective="click", features=features)
    return Update(ad_id=f"new-{number}", at=10**15 * 2, bid=1.0, content=content)
