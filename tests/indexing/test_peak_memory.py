"""The peak of memory is the program's own."""

import subprocess
import sys

from indexing.peak_memory import peak_memory_bytes

CODE = "from indexing.peak_memory import peak_memory_bytes; print(peak_memory_bytes())"


def test_a_program_does_not_count_the_memory_of_the_one_that_started_it() -> None:
    large = b"x" * (200 << 20)
    started = int(subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout)
    assert len(large) < peak_memory_bytes()
    assert 0 < started < len(large)
