"""Freed memory that the process keeps."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, numpy as np
from modeling.memory import keep_freed_memory
made = keep_freed_memory() if {keep} else True
for _ in range(20):
    np.ones(4_000_000)
print(int(made), resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone has the setting")
def test_a_block_that_comes_back_is_not_zeroed_again() -> None:
    """In processes of their own: the setting cannot be taken back."""
    counts = []
    for keep in (False, True):
        program = [sys.executable, "-c", PROGRAM.format(keep=keep)]
        made, faults = subprocess.run(program, capture_output=True, check=True, text=True).stdout.split()
        assert made == "1"
        counts.append(int(faults))
    assert counts[1] < counts[0]
