"""Runs a Dockerfile's own steps without Docker, then what it starts, under the limits of a hardened container.

    python deploy/try_image.py deploy/docker/service.Dockerfile [--store DIRECTORY] [--build-arg NAME=VALUE]
    python deploy/try_image.py deploy/docker/jobs.Dockerfile --run "adsieve demo --preset tiny --out /data/demo"

Each stage is a copy-on-write layer over this machine's own root (an overlay in a mount namespace of its own), so that
this machine stands in for the base image: what is shown is that the steps work and that the service runs as the image's
user with a read-only root, without capabilities and without a network; not that the base image has what they need. It
needs root on Linux, with namespaces and overlays, and says so where it has not.
"""

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from try_service import LOOPBACK_UP, as_its_user, check_service

REPOSITORY = Path(__file__).resolve().parent.parent
_INSIDE = "ADSIEVE_TRY_IMAGE_INSIDE"
_APART = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
"""When its first process ends, all that runs in it does, and what was mounted is gone."""
_PYTHON = Path(sys.executable).resolve()
_BASE_PATH = f"{_PYTHON.parent}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass
class Stage:
    """One stage: where its root is mounted and what its instructions have set so far."""

    root: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": _BASE_PATH})
    args: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    volumes: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Name and argument of each instruction, continued lines joined.

    Raises:
        ValueError: A line is no instruction.
    """
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    found = []
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            match = re.fullmatch(r"([A-Z]+)\s+(.*\S)\s*", line)
            if match is None:
                raise ValueError(f"{dockerfile}: expected an instruction, got {line!r}")
            found.append((match[1], match[2]))
    return found


def context_files(root: Path) -> list[str]:
    """What `.dockerignore` lets into a build: the last line that matches a path or a directory above it decides."""
    rules = []
    for line in (root / ".dockerignore").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern = line.lstrip("!").strip("/")
            regex = fnmatch.translate(pattern.removeprefix("**/")).removesuffix("\\Z")
            anywhere = "(?:.*/)?" if pattern.startswith("**/") else ""
            rules.append(
                (re.compile(f"{anywhere}{regex}(?:/.*)?\\Z" if pattern != "*" else ".*"), line.startswith("!"))
            )
    found = []
    for directory, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in (".git", ".venv")]
        for name in names:
            path = (Path(directory) / name).relative_to(root).as_posix()
            verdicts = [kept for regex, kept in rules if regex.match(path)]
            if not verdicts or verdicts[-1]:
                found.append(path)
    return sorted(found)


def build(dockerfile: Path, space: Path, given: dict[str, str]) -> Stage:
    """Carry out a Dockerfile; the last stage.

    Raises:
        ValueError: An instruction that this script does not know.
        subprocess.CalledProcessError: A step failed.
    """
    stages: dict[str, Stage] = {}
    stage = None
    for name, text in instructions(dockerfile):
        begin = time.monotonic()
        if name == "FROM":
            label = text.split(" AS ")[1] if " AS " in text else str(len(stages))
            stage = stages[label] = Stage(_layer(space / label))
        elif stage is None:
            raise ValueError(f"{dockerfile}: {name} before FROM")
        else:
            _carry_out(stage, stages, name, text, given)
        if name in ("FROM", "RUN", "COPY"):
            print(f"{time.monotonic() - begin:6.1f} s  {name} {text[:110]}", flush=True)
    if stage is None:
        raise ValueError(f"{dockerfile}: has no FROM")
    return stage


def _layer(place: Path) -> Path:
    """This machine's root, written to beside it; every user may use its Python, as in the base image."""
    for name in ("upper", "work", "root"):
        (place / name).mkdir(parents=True)
    root, layers = place / "root", f"lowerdir=/,upperdir={place}/upper,workdir={place}/work"
    _run("mount", "-t", "overlay", "overlay", "-o", layers, str(root))
    _run("mount", "--rbind", "/sys", f"{root}/sys")
    _run("mount", "--rbind", "/dev", f"{root}/dev")
    _run("mount", "-t", "proc", "proc", f"{root}/proc")
    for folder in _PYTHON.parents:
        inside = root / folder.relative_to("/")
        inside.chmod(inside.stat().st_mode | 0o055)
    return root


def _carry_out(stage: Stage, stages: dict[str, Stage], name: str, text: str, given: dict[str, str]) -> None:
    match name:
        case "ARG":
            variable, _, default = text.partition("=")
            if variable in given or default:
                stage.args[variable] = given.get(variable, default)
        case "ENV":
            stage.env |= dict(pair.split("=", 1) for pair in shlex.split(text))
        case "WORKDIR":
            stage.workdir = text
            (stage.root / text.strip("/")).mkdir(parents=True, exist_ok=True)
        case "RUN":
            pip = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
            arguments = {key: value for key, value in stage.args.items() if value}
            environment = {"HOME": "/root"} | pip | stage.env | arguments
            _run("chroot", str(stage.root), "env", "-C", stage.workdir, "/bin/sh", "-c", text, env=environment)
        case "COPY":
            _copy(stage, stages, text)
        case "USER":
            stage.user = text
        case "VOLUME":
            stage.volumes = json.loads(text)
        case "ENTRYPOINT":
            stage.entrypoint = json.loads(text)
        case "CMD":
            stage.command = json.loads(text)
        case "STOPSIGNAL":
            stage.stop_signal = text
        case "HEALTHCHECK":
            stage.health = json.loads(text.split("CMD", 1)[1]) if "CMD" in text else []
        case "LABEL" | "EXPOSE":
            pass
        case _:
            raise ValueError(f"{name}: this script does not know the instruction")


def _copy(stage: Stage, stages: dict[str, Stage], text: str) -> None:
    words = text.split()
    options = dict(word.removeprefix("--").split("=") for word in words if word.startswith("--"))
    *sources, target = [word for word in words if not word.startswith("--")]
    place = stage.root / os.path.join(stage.workdir, target).strip("/")
    if "from" in options:
        shutil.copytree(stages[options["from"]].root / sources[0].strip("/"), place, symlinks=True)
        return
    files = context_files(REPOSITORY)
    for source in sources:
        prefix = "" if source == "." else source.rstrip("/") + "/"
        chosen = [path for path in files if path.startswith(prefix) or path == source]
        if not chosen:
            raise ValueError(f"COPY {source}: nothing of that name is in the build's context")
        for path in chosen:
            is_file = path == source
            inside = path.rpartition("/")[2] if is_file else path.removeprefix(prefix)
            to = place if is_file and not target.endswith(("/", ".")) else place / inside
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / path, to)
            to.chmod(int(options.get("chmod", "0644"), 8))


def start(stage: Stage, store: Path | None) -> subprocess.Popen[bytes]:
    """Start what the image starts: as process 1, without a network, on a read-only root."""
    for volume in [*stage.volumes, "/tmp"]:
        place = stage.root / volume.strip("/")
        owned = f"uid={place.stat().st_uid},gid={place.stat().st_gid},mode={place.stat().st_mode & 0o7777:o}"
        _run("mount", "-t", "tmpfs", "-o", owned, "tmpfs", str(place))
    if store is not None:
        place = stage.root / stage.env["ADSIEVE_STORE"].strip("/")
        shutil.copytree(store, place)
        _run("chown", "-R", stage.user, str(place))
    _run("mount", "-o", "remount,ro", str(stage.root))
    if not os.statvfs(stage.root).f_flag & os.ST_RDONLY:
        raise ValueError(f"{stage.root}: is writable, expected a read-only root")
    apart = ("unshare", "--net", "--pid", "--fork", "--kill-child", f"--mount-proc={stage.root}/proc")
    inside = as_its_user(stage, *stage.entrypoint, *stage.command)
    return subprocess.Popen([*apart, "--", sys.executable, "-c", LOOPBACK_UP, *inside])


def _run(*command: str, env: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, env=env)


def _can_layer() -> bool:
    """Whether this machine lets this user make the namespaces and layers that are needed."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "setpriv", "chroot"))):
        return False
    with tempfile.TemporaryDirectory(prefix="adsieve-probe-") as directory:
        layers = f"lowerdir=/,upperdir={directory}/upper,workdir={directory}/work"
        steps = f"mount -t tmpfs tmpfs {directory} && cd {directory} && mkdir upper work root"
        steps += f" && mount -t overlay overlay -o {layers} root && unshare --net --pid --fork true"
        return subprocess.run([*_APART, "sh", "-c", steps], capture_output=True, check=False).returncode == 0


def main() -> int:
    """Build, start, ask, stop; 0 where all went well, or where this machine cannot do it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("--store", type=Path, help="releases for the service, which then has to rank")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--run", metavar="COMMAND", help="run this instead of what the image starts, to its end")
    options = parser.parse_args()
    if _INSIDE not in os.environ:
        if not _can_layer():
            print("skipped: running a Dockerfile's steps needs root on Linux, with namespaces and overlays")
            return 0
        os.execvpe(_APART[0], [*_APART, sys.executable, *sys.argv], os.environ | {_INSIDE: "1"})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the first process of a namespace has no default for it
    with tempfile.TemporaryDirectory(prefix="adsieve-image-") as directory:
        space = Path(directory)
        _run("mount", "-t", "tmpfs", "-o", "size=8g", "tmpfs", directory)
        try:
            stage = build(options.dockerfile, space, dict(pair.split("=", 1) for pair in options.build_arg))
            if options.run:
                stage.entrypoint, stage.command, stage.health = [], shlex.split(options.run), []
            process = start(stage, options.store)
            number = int(signal.Signals[stage.stop_signal])
            return check_service(process, stage, number) if stage.health else process.wait()
        finally:
            _run("umount", "--recursive", "--lazy", directory)


if __name__ == "__main__":
    sys.exit(main())
