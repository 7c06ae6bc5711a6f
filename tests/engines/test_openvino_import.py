"""Opening an OpenVINO engine starts no process and reports nothing home."""

import subprocess
import sys

IMPORTED = """
import sys
events = []
told = ("os.fork", "os.posix_spawn", "socket.")
sys.addaudithook(lambda event, _: events.append(event) if event.startswith(told) else None)
from engines.openvino_cpu import has_bf16
has_bf16()
import threading, time
deadline = time.monotonic() + 1
while threading.active_count() > 1 and time.monotonic() < deadline:
    time.sleep(.01)
print(events, sys.modules["openvino_telemetry"])
"""


def test_it_is_imported_without_its_telemetry() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    assert done.stdout == "[] None\n"


FIRST_USE = """
import sys, threading
sys.setswitchinterval(1e-6)
from engines.openvino_cpu import _import_openvino
together = threading.Barrier(8)
def use():
    together.wait()
    _import_openvino().Type.f32.to_dtype()
threads = [threading.Thread(target=use, daemon=True) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_several_threads_may_be_the_first_to_use_it() -> None:
    subprocess.run([sys.executable, "-c", FIRST_USE], check=True, timeout=60)
