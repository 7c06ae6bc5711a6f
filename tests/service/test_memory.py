"""Freed memory goes back to the system."""

import os
import platform
import socket
import subprocess
import sys

import pytest

from service import server
from service.settings import Settings

ANONYMOUS = """
def anonymous():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024
"""

HOLES = f"""
import gc, sys
from service.memory import give_back
{ANONYMOUS}
kept, holes = [], []
for number in range(20_000):
    holes.append(bytes(10_000))
    kept.append(bytes(600))
full = anonymous()
del holes
gc.collect()
before = anonymous()
found = give_back()
print(full, before, anonymous(), found)
"""


def test_holes_between_what_is_kept_are_given_back():
    told = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True).stdout.split()
    full, before, after = map(float, told[:3])
    if told[3] == "True":  # glibc
        assert before - after > 50
    assert after <= before <= full


RELEASES = f"""
import platform, sys
from threading import Thread
import numpy as np
from service.memory import LARGE_BYTES, set_up_heap
{ANONYMOUS}
was_set = sys.argv[1] == "apart" and set_up_heap()
stays, given_back = [], []

def load():
    weights = [np.ones(2 * LARGE_BYTES, np.uint8) for _ in range(32)]
    stays.extend(bytes(700) for _ in range(1_000))  # of what goes on meanwhile, above them
    full = anonymous()
    weights.clear()
    given_back.append(full - anonymous())

for _ in range(3):
    thread = Thread(target=load)
    thread.start()
    thread.join()
print(platform.libc_ver()[0], was_set, *given_back)
"""


def released(how: str, **variables: str) -> tuple[bool, list[float]]:
    """Whether large blocks are kept apart, and the MiB that go back with each of three releases of 64."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", RELEASES, how]
    told = subprocess.run(command, env=given | variables, capture_output=True, text=True, check=True).stdout.split()
    if told[0] != "glibc":
        pytest.skip("the C library is not glibc")
    return told[1] == "True", [float(one) for one in told[2:]]


def test_all_of_each_release_goes_back_and_not_of_the_first_alone():
    was_set, apart = released("apart")
    assert was_set
    assert min(apart) > 60
    was_set, left = released("leave")
    assert not was_set
    assert left[0] > 60 > 30 > max(left[1:])  # what this is for


@pytest.mark.parametrize(
    ("variables", "is_set"),
    [
        ({"MALLOC_MMAP_THRESHOLD_": "33554432"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "33554432"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=33554432"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7"}, True),
    ],
)
def test_what_an_operator_sets_stands(variables, is_set):
    assert released("apart", **variables)[0] == is_set


HEAPS = """
import ctypes
from threading import Barrier, Thread
from service.memory import set_up_heap
set_up_heap()
libc, together = ctypes.CDLL(None), Barrier(4)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p

def load():
    together.wait()
    for _ in range(1_000):
        libc.malloc(10_000)
    together.wait()

threads = [Thread(target=load) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
out = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


@pytest.mark.parametrize(("limit", "is_one"), [({}, True), ({"MALLOC_ARENA_MAX": "4"}, False)])
def test_threads_share_one_heap_unless_an_operator_says_else(limit, is_one):
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the C library is not glibc")
    given = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    told = subprocess.run([sys.executable, "-c", HEAPS], env=given | limit, capture_output=True, text=True, check=True)
    assert (told.stdout.count("<heap nr") == 1) == is_one, told.stdout


def test_it_is_set_before_a_process_loads_anything(monkeypatch):
    done = []

    def application(options):
        done.append("application")
        raise ZeroDivisionError

    monkeypatch.setattr(server, "set_up_logs", lambda *arguments: None)
    monkeypatch.setattr(server, "set_up_heap", lambda: done.append("apart"))
    monkeypatch.setattr(server, "_application", application)
    with socket.socket() as listener, pytest.raises(ZeroDivisionError):
        server.serve_process(server.ServeOptions(settings=Settings(store="store")), listener)
    assert done == ["apart", "application"]
