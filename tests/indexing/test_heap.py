"""Freed arrays stay with the process that asked for it."""

import subprocess
import sys

import pytest

from indexing import heap

PROGRAM = """
import platform, resource, sys
import numpy as np
from indexing.heap import keep_freed_memory

if platform.libc_ver()[0] != "glibc":
    print("none")
    sys.exit()
if sys.argv[1] == "keep":
    keep_freed_memory()
for _ in range(3):
    np.ones(24 << 20, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    arrays = [np.ones(24 << 20, np.uint8) for _ in range(4)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    result = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    if result.stdout.strip() == "none":
        pytest.skip("the C library is not glibc")
    return int(result.stdout)


def test_arrays_are_made_of_pages_that_the_process_has() -> None:
    assert faults("keep") * 4 < faults("leave")


GIVEN_BACK = """
import platform
from pathlib import Path
import numpy as np
import pyarrow as pa
from indexing.heap import give_back_freed_memory, keep_freed_memory

def resident():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])

if platform.libc_ver()[0] != "glibc":
    print("none none none")
else:
    keep_freed_memory()
    arrays = [np.ones(1 << 20, np.uint8) for _ in range(100)]
    last = np.ones(1 << 20, np.uint8)  # the end of the heap stays in use
    full = resident()
    del arrays
    kept = resident()
    give_back_freed_memory()
    print(full, kept, resident(), pa.default_memory_pool().backend_name)
"""


def test_what_is_kept_is_given_back_when_it_is_asked_for() -> None:
    result = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, check=True)
    if result.stdout.startswith("none"):
        pytest.skip("the C library is not glibc")
    full, kept, left, pool = result.stdout.split()
    assert int(full) - int(kept) < 20 << 10
    assert int(kept) - int(left) > 80 << 10
    assert pool == "system"


def test_a_build_gives_back_after_every_so_many_ads(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[None] = []
    monkeypatch.setattr(heap, "TIDY_ADS", 100)
    monkeypatch.setattr(heap, "give_back_freed_memory", lambda: given_back.append(None))
    tidy, times = heap.Tidy(), list[int]()
    for _ in range(9):
        tidy(30)
        times.append(len(given_back))
    assert times == [0, 0, 0, 1, 1, 1, 1, 2, 2]
