"""Freed arrays stay with the process that asked for it."""

import subprocess
import sys

import pytest

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
