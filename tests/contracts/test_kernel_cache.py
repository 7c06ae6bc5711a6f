"""Compiled kernels are kept for the next process, brought along by an image, and made by one process for all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.kernel_cache import BROUGHT, kernel_cache, one_compiles, sources_digest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_is_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BROUGHT, raising=False)


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an image brings, made by another user who locked it."""
    kernels = tmp_path / "image" / sources_digest()
    (kernels / "kernels_0").mkdir(parents=True)
    (kernels / "kernels_0" / "a.nbi").write_bytes(b"code")
    (kernels / "whole-x").touch()
    (kernels / "lock").touch()
    monkeypatch.setenv(BROUGHT, str(kernels.parent))
    return kernels


def test_they_are_kept_among_the_users_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with kernel_cache() as directory:
        assert directory == tmp_path / "adsieve" / "kernels" / sources_digest()
        assert list(directory.iterdir()) == []
    assert directory.exists()


def test_without_a_place_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with kernel_cache() as directory:
        assert directory is None
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", classmethod(no_home))
    with kernel_cache() as directory:
        assert directory is None


def no_home(kind: type[Path]) -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_what_an_image_brings_is_the_beginning_of_the_cache(
    brought: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    with kernel_cache() as directory:
        assert directory.is_relative_to(tmp_path / "user")
        assert sorted(path.name for path in directory.rglob("*")) == ["a.nbi", "kernels_0", "whole-x"]
        (directory / "kernels_0" / "a.nbi").write_bytes(b"newer")
    with kernel_cache() as directory:
        assert (directory / "kernels_0" / "a.nbi").read_bytes() == b"newer"
    assert [path.name for path in directory.parent.iterdir()] == [sources_digest()]


def test_where_nothing_can_be_kept_what_was_brought_serves_from_a_copy(
    brought: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with kernel_cache() as directory:
        assert not directory.is_relative_to(brought.parent)
        assert (directory / "kernels_0" / "a.nbi").read_bytes() == b"code"
        (directory / "new").touch()
    assert not directory.exists()
    brought.rename(brought.with_name("of other sources"))
    with kernel_cache() as directory:
        assert directory is None
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with kernel_cache() as directory:
        assert directory is None


def test_what_is_whole_needs_no_lock_and_what_fails_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(EOFError), one_compiles(tmp_path):
        raise EOFError
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    with one_compiles(tmp_path), pytest.raises(StopIteration), one_compiles(tmp_path / "another"):
        raise StopIteration
    (tmp_path / "lock").unlink()
    with one_compiles(tmp_path):
        assert not (tmp_path / "lock").exists()


TOGETHER = """
import sys, time
from pathlib import Path
from contracts.kernel_cache import one_compiles

directory, own = Path(sys.argv[1]), sys.argv[2]
(directory / f"{own}.ready").touch()
while len(list(directory.glob("*.ready"))) < 3:
    time.sleep(0.005)
with one_compiles(directory):
    if not (directory / "compiled").exists():
        time.sleep(0.2)
        (directory / "compiled").touch()
        print("compiles")
"""


def test_of_processes_that_begin_together_one_compiles(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TOGETHER, str(tmp_path)]
    running = [subprocess.Popen([*command, str(own)], stdout=subprocess.PIPE, text=True, cwd=ROOT) for own in range(3)]
    assert sorted(process.communicate(timeout=60)[0] for process in running) == ["", "", "compiles\n"]


@pytest.mark.slow
def test_kernels_of_an_image_are_not_compiled_again(tmp_path: Path) -> None:
    """Neither into the user's cache nor where nothing can be written."""
    pytest.importorskip("numba")
    (tmp_path / "file").touch()
    program = """
import time
from numba.core.codegen import JITCPUCodegen
made, create = [], JITCPUCodegen._create_empty_module
JITCPUCodegen._create_empty_module = lambda self, name: made.append(name) or create(self, name)
from contracts.compiled import prepare
assert prepare()
print(len(made))
"""

    def modules(cache: Path, brought: Path | None) -> int:
        environment = os.environ | {"XDG_CACHE_HOME": str(cache), BROUGHT: str(brought or "")}
        environment.pop("NUMBA_CACHE_DIR", None)
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    image = tmp_path / "image"
    compiled = modules(image, None)
    kept = modules(image, None)
    assert kept < compiled
    assert modules(tmp_path / "user", image / "adsieve" / "kernels") == kept
    assert modules(tmp_path / "file", image / "adsieve" / "kernels") == kept
