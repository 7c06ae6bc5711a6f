"""What the machine has: its CPU, cores and memory, limits of its container, files, places to write, GPUs."""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from contracts.caches import user_caches
from contracts.compiled import prepare
from service.doctor.findings import Finding, Standing, size

SECTION = "machine"
INSTRUCTIONS = {
    "AVX2": {"avx2"},
    "F16C": {"f16c"},
    "AVX-512": {"avx512f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "BF16": {"avx512_bf16", "avx_bf16", "amx_bf16"},
    "AMX": {"amx_tile"},
}
"""By the names that /proc/cpuinfo has for them, of which one is enough."""
SMALL_MEMORY, SMALL_DISK, FEW_FILES = 2 << 30, 1 << 30, 4_096
LITTLE_QUOTA = 0.01
GPU_SECONDS = 5
COMPILED = "ADSIEVE_COMPILED"


def cpu_finding(cpuinfo: str) -> Finding:
    """Model and instructions, out of the text of /proc/cpuinfo; empty where there is none."""
    fields = dict(line.split(":", 1) for line in reversed(cpuinfo.splitlines()) if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    flags, model = set(fields.get("flags", "").split()), fields.get("model name", platform.machine())
    if not flags:
        return Finding(section=SECTION, name="cpu", standing="note", found=f"{model}; its instructions are not told")
    has = {name: bool(flags & any_of) for name, any_of in INSTRUCTIONS.items()}
    found = f"{model}: {_listed(has, True)}" + (f"; without {_listed(has, False)}" if not all(has.values()) else "")
    if not has["AVX2"] or not has["F16C"]:
        step = "serve on a CPU of 2014 or later: engines and the fp16 index are several times slower without"
        return Finding(section=SECTION, name="cpu", standing="warn", found=found, next_step=step, facts={**has})
    return Finding(section=SECTION, name="cpu", standing="ok", found=found, facts={"model": model, **has})


def cores_finding(cores: int, quota: float | None) -> Finding:
    """The cores that this process may use, and how many its container may keep busy."""
    facts: dict[str, str | int | float | bool | None] = {"cores": cores, "quota": quota}
    if quota is not None and quota < cores - LITTLE_QUOTA:
        whole = max(1, int(quota))
        return Finding(
            section=SECTION,
            name="cores",
            standing="warn",
            found=f"{cores}, of which the container's quota leaves {quota:g}: more threads stop now and then",
            next_step=f"ADSIEVE_ENGINE_THREADS={whole} adsieve serve --workers 1, or raise the container's quota",
            facts=facts,
        )
    return Finding(section=SECTION, name="cores", standing="ok", found=str(cores), facts=facts)


def memory_finding(total: int, available: int, limit: int | None) -> Finding:
    """Memory of the machine, and what its container may take."""
    most = available if limit is None else min(available, limit)
    found = f"{size(total)}, {size(available)} free" + (f", limit of the container {size(limit)}" if limit else "")
    small = most < SMALL_MEMORY
    return Finding(
        section=SECTION,
        name="memory",
        standing="warn" if small else "ok",
        found=found,
        next_step="give it 2 GiB or more: docs/how-to/sizes.md tells what an index takes" if small else None,
        facts={"total": total, "available": available, "limit": limit},
    )


def files_finding(soft: int, hard: int) -> Finding:
    """How many files and connections a process may have open; below 0 is no limit."""
    few = 0 <= soft < FEW_FILES
    can = f"ulimit -n {min(65_536, hard) if hard > 0 else 65_536}"
    return Finding(
        section=SECTION,
        name="open files",
        standing="warn" if few else "ok",
        found=f"{soft:,}" if soft >= 0 else "unlimited",
        next_step=f"{can} before `adsieve serve` (systemd: LimitNOFILE): each connection is one" if few else None,
        facts={"soft": soft, "hard": hard},
    )


def kernels_finding(prepare: Callable[[], bool] = prepare) -> Finding:
    """Whether compiled kernels serve here; they are compiled where no process kept them yet.

    Args:
        prepare: Loads them, and logs why it cannot.
    """
    is_off = os.environ.get(COMPILED) == "0"
    if not is_off and prepare():
        return Finding(section=SECTION, name="kernels", standing="ok", found="compiled", facts={"compiled": True})
    return Finding(
        section=SECTION,
        name="kernels",
        standing="warn",
        found=f"NumPy in their place, several times slower in places{f': {COMPILED}=0' if is_off else ''}",
        next_step=f"unset {COMPILED}" if is_off else "install numba as requirements/serve.txt pins it",
        facts={"compiled": False},
    )


def directory_finding(name: str, path: Path, variable: str, *, lack: Standing = "fail") -> Finding:
    """Whether files can be made in a directory, which is made, and the room there.

    Args:
        lack: How it stands where they cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"1")
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Finding(
            section=SECTION,
            name=name,
            standing=lack,
            found=f"{path}: {(error.strerror or str(error)).lower()}",
            next_step=f"make it writable, or name another directory in {variable}",
        )
    full = free < SMALL_DISK
    return Finding(
        section=SECTION,
        name=name,
        standing="warn" if full else "ok",
        found=f"{path}, {size(free)} free",
        next_step=f"make room, or name another directory in {variable}" if full else None,
        facts={"path": str(path), "free": free},
    )


def gpu_findings(devices: tuple[Path, ...]) -> Iterator[Finding]:
    """The NVIDIA GPUs, by nvidia-smi, where a device file says that there are some."""
    if not any(device.exists() for device in devices):
        yield Finding(section=SECTION, name="gpu", standing="note", found="no NVIDIA GPU: models run on the CPU")
        return
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=GPU_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        step = "install the driver's nvidia-smi; in a container, start it with --gpus all"
        found = f"a device, and nvidia-smi does not answer: {error}"
        yield Finding(section=SECTION, name="gpu", standing="warn", found=found, next_step=step)
        return
    for line in told.strip().splitlines():
        name, memory, driver = (part.strip() for part in line.rsplit(",", 2))
        facts: dict[str, str | int | float | bool | None] = {"name": name, "memory": memory, "driver": driver}
        yield Finding(
            section=SECTION, name="gpu", standing="ok", found=f"{name}, {memory}, driver {driver}", facts=facts
        )


def machine_findings(devices: tuple[Path, ...], root: Path = Path("/")) -> Iterator[Finding]:
    """Everything about this machine.

    Args:
        devices: Files of which one exists where there is a GPU.
        root: Where /proc and /sys lie.
    """
    import resource

    memory = memory_sizes(_text(root / "proc/meminfo"))
    yield cpu_finding(_text(root / "proc/cpuinfo"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield cores_finding(cores, cpu_quota(root / "sys/fs/cgroup"))
    if memory is not None:
        yield memory_finding(*memory, memory_limit(root / "sys/fs/cgroup"))
    yield files_finding(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield directory_finding("temporary files", Path(tempfile.gettempdir()), "TMPDIR")
    yield kernels_finding()
    # Without it each process compiles and compares engines for itself.
    yield directory_finding("cache", user_caches(), "XDG_CACHE_HOME", lack="warn")
    yield from gpu_findings(devices)


def cpu_quota(cgroup: Path) -> float | None:
    """Cores that the container may keep busy, of cgroups 2 or 1; None without a limit."""
    quota, _, period = _text(cgroup / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_text(cgroup / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    if not quota.isdecimal() or not period.isdecimal():  # max, -1, or no such file
        return None
    return int(quota) / int(period)


def memory_limit(cgroup: Path) -> int | None:
    """Bytes that the container may take, of cgroups 2 or 1; None without a limit."""
    text = _text(cgroup / "memory.max").strip() or _text(cgroup / "memory" / "memory.limit_in_bytes").strip()
    return int(text) if text.isdecimal() and int(text) < 1 << 60 else None


def memory_sizes(meminfo: str) -> tuple[int, int] | None:
    """Bytes in all and free for new work, out of the text of /proc/meminfo."""
    sizes = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in meminfo.splitlines()) if rest}
    if not {"MemTotal", "MemAvailable"} <= sizes.keys():
        return None
    return int(sizes["MemTotal"]) << 10, int(sizes["MemAvailable"]) << 10


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _listed(has: dict[str, bool], wanted: bool) -> str:
    return ", ".join(name for name, there in has.items() if there == wanted) or "none of the instructions asked for"
