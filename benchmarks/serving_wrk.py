"""Load by wrk: one thread, some connections, bodies by turns, quantiles of the latency."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """
local bodies, headers, turn = {}, %s, 0
for number = 0, %d - 1 do
  local file = io.open("%s/" .. number .. ".json", "rb")
  bodies[number] = file:read("*a")
  file:close()
end
local requests = {}
init = function(arguments)
  for number = 0, #bodies do requests[number] = wrk.format("POST", nil, headers, bodies[number]) end
end
request = function()
  turn = (turn + 1) %% (#bodies + 1)
  return requests[turn]
end
done = function(summary, latency, requests)
  local errors = summary.errors
  local line = '\\nRESULT {"requests": %%d, "us": %%d, "p50": %%f, "p99": %%f, "status": %%d, "socket": %%d}\\n'
  io.write(string.format(line, summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
"""


@dataclass(frozen=True)
class Load:
    """What one block of wrk found: requests a second, quantiles in milliseconds."""

    rate: float
    p50: float
    p99: float


_LONGER, _LONGEST_S = 4, 60
"""Times as long is a block after one without an answer, as of 10,000 objects on a slow machine; the longest one."""


def require_wrk() -> None:
    """Fail before anything is made.

    Raises:
        SystemExit: wrk is not installed.
    """
    if shutil.which("wrk") is None:
        raise SystemExit("benchmarks.serving needs wrk, a package of Debian: apt-get install wrk")


def write_script(bodies: Sequence[bytes], headers: Mapping[str, str], directory: Path) -> Path:
    """Write bodies and a Lua script that sends them by turns; returns the script."""
    directory.mkdir(parents=True)
    for number, body in enumerate(bodies):
        (directory / f"{number}.json").write_bytes(body)
    table = "{" + ", ".join(f'["{name}"] = "{value}"' for name, value in headers.items()) + "}"
    script = directory / "load.lua"
    script.write_text(_SCRIPT % (table, len(bodies), directory))
    return script


def run_wrk(url: str, script: Path, *, connections: int, seconds: float) -> Load:
    """One block; where nobody was answered within it, a longer one.

    Raises:
        RuntimeError: An answer had another status than 2xx or 3xx, or a connection failed, or nobody is answered.
    """
    whole = max(1, round(seconds))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{whole}s", "--timeout", "30s", "-s", str(script), url]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in result.stdout.splitlines() if line.startswith("RESULT ")]
    if result.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    found = json.loads(lines[0].removeprefix("RESULT "))
    if not found["requests"] and whole < _LONGEST_S and not found["status"] and not found["socket"]:
        return run_wrk(url, script, connections=connections, seconds=_LONGER * whole)
    if found["status"] or found["socket"] or not found["requests"]:
        raise RuntimeError(f"{url}: {found['status']} answers of another status, {found['socket']} failed connections")
    return Load(rate=found["requests"] / found["us"] * 1e6, p50=found["p50"] / 1e3, p99=found["p99"] / 1e3)
