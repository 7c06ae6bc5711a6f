"""Freed memory that the process keeps."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from modeling.memory import keep_freed_memory
made = keep_freed_memory() if {keep} else True
b"x" * 32_000_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    b"x" * 32_000_000
print(int(made), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
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
    given_back, kept = counts  # page faults of blocks that were all there before
    assert kept < given_back / 2
