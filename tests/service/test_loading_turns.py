"""Processes of one host load one after another; nobody waits for one that died, that never ends, or when stopping."""

import subprocess
import sys
import threading
import time

from service.loading_turns import loading_turn

HOLDER = """
import sys, threading
from pathlib import Path
from service.loading_turns import loading_turn
with loading_turn(Path(sys.argv[1]), threading.Event()):
    print("has it", flush=True)
    sys.stdin.read()
"""


def holder(directory) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"has it\n"
    return process


def test_a_turn_begins_when_the_other_process_has_ended_its_own(tmp_path):
    order = []

    def load() -> None:
        with loading_turn(tmp_path, threading.Event()):
            order.append("second")

    with holder(tmp_path) as first:
        thread = threading.Thread(target=load)
        thread.start()
        time.sleep(0.3)
        order.append("first ends")
        first.stdin.close()
        thread.join(30)
    assert order == ["first ends", "second"]


def test_a_killed_process_holds_nobody_up(tmp_path):
    with holder(tmp_path) as first:
        first.kill()
        first.wait()
        with loading_turn(tmp_path, threading.Event(), patience_s=3600):
            pass


def test_patience_ends_and_so_does_a_process_that_stops(tmp_path):
    stopping = threading.Event()
    stopping.set()
    with holder(tmp_path) as first:
        with loading_turn(tmp_path, threading.Event(), patience_s=0.1):
            pass
        with loading_turn(tmp_path, stopping, patience_s=3600):
            pass
        first.stdin.close()


def test_a_process_alone_has_its_turn():
    with loading_turn(None, threading.Event(), patience_s=3600):
        pass


def test_a_directory_that_is_gone_holds_nobody_up(tmp_path):
    with loading_turn(tmp_path / "gone", threading.Event(), patience_s=3600):
        pass
