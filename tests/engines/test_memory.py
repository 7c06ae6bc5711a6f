"""One process of a host compares engines, and the others serve with the one that it found, as long as it passes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts.errors import ArtifactError
from engines import memory as memories
from engines.memory import DAYS, EngineMemory
from engines.select import Selection, Trial

NAMES = ["onnxruntime_cpu", "openvino_fp32", "openvino_bf16"]


def selected(name: str, *, is_for_now: bool = False) -> Selection[str]:
    later = Trial(name="tensorrt", status="unavailable", reason="later", is_for_now=is_for_now)
    return Selection(name=name, loaded=name, trials=(Trial(name=name, status="serves", ms=1.0), later))


@pytest.fixture
def memory(tmp_path: Path) -> EngineMemory:
    return EngineMemory(["a model", "v1"], threads=2, directory=tmp_path)


def test_what_was_found_is_taken_again_and_loaded_anew(memory: EngineMemory) -> None:
    asked = []

    def select(names: list[str]) -> Selection[str]:
        asked.append(list(names))
        return selected(names[0] if len(names) == 1 else names[len(asked)])

    assert [memory.choose(NAMES, select).name for _ in range(3)] == ["openvino_fp32"] * 3
    assert asked == [NAMES, ["openvino_fp32"], ["openvino_fp32"]]
    assert memory.choose(NAMES[:1], lambda names: selected(names[0])).name == "onnxruntime_cpu"  # the other is not here
    assert memory.recall() == "onnxruntime_cpu"


def test_one_that_does_not_pass_is_replaced(memory: EngineMemory) -> None:
    def select(names: list[str]) -> Selection[str]:
        if names == ["openvino_bf16"]:
            raise ArtifactError("refused")
        return selected("openvino_fp32")

    memory.note("openvino_bf16")
    assert memory.choose(NAMES, select).name == "openvino_fp32"
    assert memory.recall() == "openvino_fp32"


def test_nothing_is_remembered_while_another_may_come(memory: EngineMemory) -> None:
    assert memory.choose(NAMES, lambda names: selected("onnxruntime_cpu", is_for_now=True)).name == "onnxruntime_cpu"
    assert memory.recall() is None


def test_what_is_old_damaged_or_of_the_future_is_not_recalled(memory: EngineMemory) -> None:
    memory.note("openvino_fp32")
    now = time.time()
    for age_s, expected in ((0, "openvino_fp32"), ((DAYS + 1) * 86_400, None), (-3_600, None)):
        os.utime(memory.path, (now - age_s, now - age_s))
        assert memory.recall() == expected
    for damaged in (b'"tpu"', b"{", b"\xff", b""):
        memory.path.write_bytes(damaged)
        assert memory.recall() is None
    memory.path.unlink()
    memory.path.mkdir()
    assert memory.recall() is None
    memory.note("openvino_fp32")  # cannot be written, which is no error


def test_what_is_old_is_removed(memory: EngineMemory, tmp_path: Path) -> None:
    others = [EngineMemory(["a model", version], threads=2, directory=tmp_path) for version in ("v2", "v3")]
    for other in others:
        other.choose(NAMES, lambda names: selected("openvino_fp32"))
    os.utime(others[0].path, (0, 0))
    memory.note("onnxruntime_cpu")
    assert set(tmp_path.iterdir()) == {memory.path, others[1].path, others[1].path.with_suffix(".lock")}


def test_each_model_number_of_threads_machine_and_library_has_its_own(
    memory: EngineMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def path(version: str = "v1", threads: int = 2) -> Path:
        return EngineMemory(["a model", version], threads=threads, directory=tmp_path).path

    paths = [path(), path("v2"), path(threads=1)]
    monkeypatch.setattr(memories, "_processor", lambda: ["another"])
    paths.append(path())
    monkeypatch.setattr(memories, "_version", lambda name: "99")
    paths.append(path())
    assert paths[0] == memory.path
    assert len(set(paths)) == len(paths)


def test_where_nothing_can_be_kept_all_are_compared(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    memory = EngineMemory(["a model"], threads=1, directory=tmp_path / "file" / "below")
    assert [memory.choose(NAMES, lambda names, name=name: selected(name)).name for name in NAMES] == NAMES


PROCESS = """
import json, sys, time
from pathlib import Path
from engines.memory import EngineMemory
from engines.select import Selection, Trial

own, directory, asked = sys.argv[1], Path(sys.argv[2]), []

def select(names):
    asked.append(len(names))
    time.sleep(0.3 if len(names) > 1 else 0.0)  # the others arrive meanwhile
    name = names[0] if len(names) == 1 else own
    return Selection(name=name, loaded=name, trials=(Trial(name=name, status="serves", ms=1.0),))

memory = EngineMemory(["a model"], threads=1, directory=directory)
(directory / f"{own}.ready").touch()
while len(list(directory.glob("*.ready"))) < 3:
    time.sleep(0.005)
print(json.dumps([memory.choose(["onnxruntime_cpu", "openvino_fp32", "openvino_bf16"], select).name, asked]))
"""


def test_processes_that_begin_together_take_the_same(tmp_path: Path) -> None:
    """Each of them would find another engine to be the fastest."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", PROCESS]
    running = [
        subprocess.Popen([*command, name, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root) for name in NAMES
    ]
    found = [json.loads(process.communicate(timeout=60)[0]) for process in running]
    assert len({name for name, _ in found}) == 1
    assert sorted(asked for _, asked in found) == [[1], [1], [3]]
