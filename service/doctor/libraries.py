"""Which libraries are installed, in which versions, and whether those that must fit together do.

Nothing is imported but, in a process of its own, torchrec: of torch, fbgemm and torchrec each release is built for one
of the others, which nothing in their metadata says, and what does not fit fails when it is imported.
"""

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

from service.doctor.findings import Finding

SECTION = "libraries"
OLDEST_PYTHON = (3, 11)
IMPORT_SECONDS = 60

TRIPLES = (("2.13", "1.8", "1.8"), ("2.14", "1.9", "1.9"))
"""torch, fbgemm and torchrec that were built for each other, by the first two numbers of their versions. The first is
the one that adsieve is tested with."""
TESTED = {"torch": "2.13.0", "fbgemm-gpu-cpu": "1.8.0", "torchrec": "1.8.0"}

SERVE, TRAIN = "pip install -r requirements/serve.txt", "pip install -r requirements/train.txt"
FBGEMM = ("fbgemm-gpu-cpu", "fbgemm-gpu")
ONE_FOLDER = (("faiss-cpu", ("faiss-gpu-cu12", "faiss-gpu")), ("onnxruntime", ("onnxruntime-gpu",)))
"""Wheels that are unpacked over each other where both are installed."""
NEEDED_TO_SERVE = (
    ("onnxruntime", "fail", "runs every model, with or without other engines"),
    ("faiss-cpu", "warn", "builds an index and answers requests without candidates"),
    ("openvino", "warn", "is often the faster engine"),
    ("redis", "note", "only a store in Redis needs it"),
)
EXTRAS = (
    ("ray", "only `adsieve index build --ray` needs it", "pip install -r requirements/ray.txt"),
    ("mlflow-skinny", "only --mlflow needs it", "pip install -r requirements/mlflow.txt"),
)

Installed = Callable[[str], str | None]
"""From a distribution to its version; None where it is not installed."""


def installed(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def python_finding(version: tuple[int, int, int] = sys.version_info[:3]) -> Finding:
    """Whether this Python is new enough."""
    text, is_new = ".".join(map(str, version)), version[:2] >= OLDEST_PYTHON
    return Finding(
        section=SECTION,
        name="python",
        standing="ok" if is_new else "fail",
        found=text,
        next_step=None if is_new else "make an environment with Python 3.11 or newer",
        facts={"version": text},
    )


def base_findings(version_of: Installed = installed, required: list[str] | None = None) -> Iterator[Finding]:
    """What every part needs, against the versions that adsieve pins.

    Args:
        version_of: Of a distribution.
        required: Requirements such as ``numpy==2.4.6``; None takes those of the installed adsieve.
    """
    lines = importlib.metadata.requires("adsieve") or [] if required is None else required
    matches = (re.match(r"([\w.-]+)(?:\[[\w,]+\])?==([\w.+]+)", line) for line in lines)
    pins = {found[1]: found[2] for found in matches if found}
    missing = [name for name in pins if version_of(name) is None]
    others = [
        f"{name} {version_of(name)}, pinned {pin}" for name, pin in pins.items() if _differs(version_of(name), pin)
    ]
    install = "pip install -r requirements/base.txt"
    if missing:
        yield Finding(
            section=SECTION,
            name="base",
            standing="fail",
            found=f"not installed: {', '.join(missing)}",
            next_step=install,
        )
    elif others:
        yield Finding(section=SECTION, name="base", standing="warn", found="; ".join(others), next_step=install)
    else:
        yield Finding(section=SECTION, name="base", standing="ok", found=f"all {len(pins)} as pinned")


def serving_findings(version_of: Installed = installed) -> Iterator[Finding]:
    """What serving needs, and wheels that lie over each other."""
    twins = dict(ONE_FOLDER)
    for name, standing, why in NEEDED_TO_SERVE:
        names = (name, *twins.get(name, ()))
        found = [(one, version) for one in names if (version := version_of(one)) is not None]
        if not found:
            told = f"not installed; {why}"
            yield Finding(section=SECTION, name=name, standing=standing, found=told, next_step=SERVE)  # type: ignore[arg-type]
        elif len(found) > 1:
            yield _overlaid(name, [one for one, _ in found])
        else:
            ((one, version),) = found
            yield Finding(section=SECTION, name=name, standing="ok", found=_named(name, one, version))


def training_finding(version_of: Installed = installed, imports: Callable[[], str | None] | None = None) -> Finding:
    """Whether torch, fbgemm and torchrec were built for each other.

    Args:
        version_of: Of a distribution.
        imports: What importing torchrec complains of, None where it does not; by default that is tried.
    """
    torch, torchrec = version_of("torch"), version_of("torchrec")
    fbgemms = [(name, version) for name in FBGEMM if (version := version_of(name)) is not None]
    if torch is None and torchrec is None and not fbgemms:
        return _training("note", "torch is not installed: this machine serves, it does not train", _install_training())
    if len(fbgemms) > 1:
        return _overlaid("training", [name for name, _ in fbgemms])
    versions = (torch, fbgemms[0][1] if fbgemms else None, torchrec)
    shown = ", ".join(
        f"{name} {version or 'not installed'}"
        for name, version in zip(("torch", fbgemms[0][0] if fbgemms else FBGEMM[0], "torchrec"), versions, strict=True)
    )
    if tuple(_minor(version) for version in versions) not in TRIPLES:
        return _training("fail", f"{shown}: not built for each other", _fitting(torch))
    fault = (imports or import_fault)()
    if fault is not None:
        return _training("fail", f"{shown}: fit by their versions, and cannot be imported: {fault}", _fitting(torch))
    if _minor(torch) != TRIPLES[0][0]:
        return _training("warn", f"{shown}: fit, and are not what adsieve is tested with", _install_training())
    return _training("ok", f"{shown}: built for each other, imported")


def extra_findings(version_of: Installed = installed) -> Iterator[Finding]:
    """What only some commands need."""
    for name, why, install in EXTRAS:
        version = version_of(name)
        if version is None:
            yield Finding(section=SECTION, name=name, standing="note", found=f"not installed; {why}", next_step=install)
        else:
            yield Finding(section=SECTION, name=name, standing="ok", found=version)


def import_fault() -> str | None:
    """Import torchrec in a process of its own; what it complains of."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import torchrec"],
            capture_output=True,
            text=True,
            timeout=IMPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {IMPORT_SECONDS} s"
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else lines[-1][:300] if lines else f"exit code {done.returncode}"


def _training(standing: str, found: str, next_step: str | None = None) -> Finding:
    return Finding(section=SECTION, name="training", standing=standing, found=found, next_step=next_step)  # type: ignore[arg-type]


def _install_training() -> str:
    return f"{TRAIN}, then pip install --no-deps -r requirements/torchrec.txt"


def _fitting(torch: str | None) -> str:
    """What to install: what fits the torch that is there, else all that adsieve is tested with."""
    for of_torch, fbgemm, torchrec in TRIPLES[1:]:
        if _minor(torch) == of_torch:
            return (
                f"pip install 'fbgemm-gpu-cpu=={fbgemm}.*', then pip install --no-deps 'torchrec=={torchrec}.*'; or, "
                f"as adsieve is tested, {_install_training()}"
            )
    pins = " ".join(f"{name}=={version}" for name, version in TESTED.items() if name != "torchrec")
    return f"pip install {pins}, then pip install --no-deps torchrec=={TESTED['torchrec']}"


def _overlaid(name: str, names: list[str]) -> Finding:
    return Finding(
        section=SECTION,
        name=name,
        standing="fail",
        found=f"{' and '.join(names)} are both installed and lie over each other in one folder",
        next_step=f"pip uninstall -y {' '.join(names)}, then install one of them",
    )


def _named(name: str, found: str, version: str) -> str:
    return version if found == name else f"{found} {version}"


def _differs(version: str | None, pin: str) -> bool:
    return version is not None and version.split("+")[0] != pin


def _minor(version: str | None) -> str | None:
    """The first two numbers of a version.

    Example:
        >>> _minor("2.13.0+cpu")
        '2.13'
    """
    return None if version is None else ".".join(version.split("+")[0].split(".")[:2])
