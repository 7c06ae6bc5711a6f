"""What the doctor says of machines, libraries and stores of every kind."""

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from engines.onnxruntime_cpu import OnnxRuntimeEngine
from service.doctor import engines, libraries, machine, report, stores
from service.doctor.drawn_tower import drawn_rows, drawn_weights, write_drawn_tower

PAIR = {"torch": "2.13.0+cpu", "fbgemm-gpu-cpu": "1.8.0", "torchrec": "1.8.0"}
CPUINFO = (
    "processor : 0\nmodel name : Some CPU\nflags : {flags}\n\nprocessor : 1\nmodel name : Some CPU\nflags : {flags}\n"
)


def one(findings, name):
    return next(finding for finding in findings if finding.name == name)


def test_the_drawn_tower_is_a_graph_that_computes_its_formula(tmp_path):
    path = write_drawn_tower(tmp_path / "drawn.onnx")
    onnx.checker.check_model(str(path), full_check=True)
    (first, _), *_ = drawn_weights()
    stored = onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    np.testing.assert_array_equal(stored, first)
    rows = drawn_rows()
    found = OnnxRuntimeEngine(path, threads=1).run({"flat": rows["in.flat"]})["embedding"]
    np.testing.assert_allclose(found, rows["out.embedding"], atol=1e-5)
    assert len(OnnxRuntimeEngine(path, threads=1).run({"flat": rows["in.flat"][:3]})["embedding"]) == 3


def test_engines_are_measured_and_the_exact_one_keeps_parity():
    found = list(engines.engine_findings(None, threads=1))
    exact = one(found, "onnxruntime_cpu")
    assert exact.standing == "ok"
    assert exact.facts["error"] < 1e-5
    assert exact.facts["ms"] > 0
    assert sum(finding.facts["status"] == "serves" for finding in found) == 1


def test_an_engine_that_is_missing_says_what_to_install(monkeypatch):
    def absent(*_, **__):
        raise ModuleNotFoundError("No module named 'openvino'")

    monkeypatch.setattr(engines, "OpenVinoEngine", absent)
    found = one(engines.engine_findings(None, threads=1), "openvino_fp32")
    assert (found.standing, found.facts["status"]) == ("note", "unavailable")
    assert "No module named 'openvino'" in found.found
    monkeypatch.setattr(engines, "OnnxRuntimeEngine", absent)
    (found,) = engines.engine_findings(None, threads=1)
    assert (found.standing, found.next_step) == ("fail", "pip install -r requirements/serve.txt")


def test_without_onnx_runtime_no_engine_can_be_tried(monkeypatch):
    monkeypatch.delitem(sys.modules, "service.doctor.engines")
    monkeypatch.setitem(sys.modules, "engines.onnxruntime_cpu", None)
    (found,) = report._engines(None, 1)
    assert found.standing == "fail"
    assert found.next_step == "pip install -r requirements/serve.txt"


def test_a_bundle_is_tried_as_it_serves(artifacts):
    found = list(engines.engine_findings(artifacts / "shopping-0", threads=1))
    assert one(found, "onnxruntime_cpu").standing == "ok"
    (refused,) = engines.engine_findings(artifacts / "ads", threads=1)
    assert refused.standing == "fail"


@pytest.mark.parametrize(
    ("versions", "fault", "standing", "found", "step"),
    [
        (PAIR, None, "ok", "built for each other", None),
        ({}, None, "note", "it does not train", "pip install -r requirements/train.txt"),
        (PAIR | {"fbgemm-gpu-cpu": "1.9.0"}, None, "fail", "not built", "torch==2.13.0 fbgemm-gpu-cpu==1.8.0"),
        (PAIR | {"torch": "2.14.1"}, None, "fail", "not built for each other", "'fbgemm-gpu-cpu==1.9.*'"),
        ({"torch": "2.13.0"}, None, "fail", "torchrec not installed", "torchrec==1.8.0"),
        (PAIR | {"fbgemm-gpu": "1.8.0"}, None, "fail", "lie over each other", "pip uninstall -y"),
        (PAIR, "undefined symbol: x", "fail", "cannot be imported: undefined symbol: x", "torchrec==1.8.0"),
        (
            {"torch": "2.14.0", "fbgemm-gpu-cpu": "1.9.0", "torchrec": "1.9.2"},
            None,
            "warn",
            "not what adsieve is tested with",
            "requirements/train.txt",
        ),
    ],
)
def test_libraries_that_train_fit_together(versions, fault, standing, found, step):
    finding = libraries.training_finding(versions.get, lambda: fault)
    assert finding.standing == standing
    assert found in finding.found
    assert step is None or step in finding.next_step


def test_what_serving_needs():
    everything = {"onnxruntime": "1.32.0", "faiss-cpu": "1.15.1", "openvino": "2026.4.1", "redis": "8.1.0"}
    assert {one.standing for one in libraries.serving_findings(everything.get)} == {"ok"}
    bare = {one.name: one.standing for one in libraries.serving_findings({}.get)}
    assert bare == {"onnxruntime": "fail", "faiss-cpu": "warn", "openvino": "warn", "redis": "note"}
    both = one(libraries.serving_findings((everything | {"faiss-gpu-cu12": "1.14.1"}).get), "faiss-cpu")
    assert (both.standing, both.found.split(" are ")[0]) == ("fail", "faiss-cpu and faiss-gpu-cu12")


@pytest.mark.parametrize(
    ("version", "standing", "found"),
    [("2.4.6", "ok", "all 1 as pinned"), ("2.5.0", "warn", "numpy 2.5.0, pinned 2.4.6"), (None, "fail", "numpy")],
)
def test_base_libraries_are_held_against_their_pins(version, standing, found):
    (finding,) = libraries.base_findings({"numpy": version}.get, ["numpy==2.4.6", 'ray; extra == "ray"'])
    assert finding.standing == standing
    assert found in finding.found


def test_an_old_python_fails():
    assert libraries.python_finding((3, 10, 9)).standing == "fail"
    assert libraries.python_finding((3, 11, 0)).standing == "ok"


@pytest.mark.parametrize(
    ("flags", "standing", "words"),
    [
        ("fpu avx2 f16c avx512f avx512_vnni avx512_bf16 amx_tile", "ok", "AVX2, F16C, AVX-512, VNNI, BF16, AMX"),
        ("fpu avx2 f16c avx_vnni", "ok", "AVX2, F16C, VNNI; without AVX-512, BF16, AMX"),
        ("fpu sse2", "warn", "none of the instructions asked for"),
    ],
)
def test_a_cpu_is_told_by_its_instructions(flags, standing, words):
    found = machine.cpu_finding(CPUINFO.format(flags=flags))
    assert found.standing == standing
    assert words in found.found


def test_a_cpu_that_tells_nothing_is_no_fault():
    assert machine.cpu_finding("").standing == "note"


def test_limits_of_a_container_are_read_from_both_kinds_of_cgroups(tmp_path):
    second, first, free = tmp_path / "2", tmp_path / "1", tmp_path / "0"
    for folder in (second, first / "cpu", first / "memory", free):
        folder.mkdir(parents=True)
    (second / "cpu.max").write_text("150000 100000\n")
    (second / "memory.max").write_text("1073741824\n")
    (first / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    (first / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (first / "memory" / "memory.limit_in_bytes").write_text("1073741824\n")
    (free / "cpu.max").write_text("max 100000\n")
    (free / "memory.max").write_text("max\n")
    for folder, quota, limit in ((second, 1.5, 1 << 30), (first, 1.5, 1 << 30), (free, None, None)):
        assert (machine.cpu_quota(folder), machine.memory_limit(folder)) == (quota, limit)
    assert machine.cores_finding(4, 1.5).standing == "warn"
    assert "ADSIEVE_ENGINE_THREADS=1" in machine.cores_finding(4, 1.5).next_step
    assert machine.cores_finding(2, 2.0).standing == machine.cores_finding(2, None).standing == "ok"
    assert machine.memory_finding(64 << 30, 32 << 30, 1 << 30).standing == "warn"
    assert machine.memory_finding(64 << 30, 32 << 30, None).standing == "ok"


def test_memory_is_read_in_bytes():
    assert machine.memory_sizes("MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\n") == (2 << 20, 1 << 20)
    assert machine.memory_sizes("") is None


def test_few_open_files_and_places_that_cannot_be_written(tmp_path):
    assert "ulimit -n 4096" in machine.files_finding(1_024, 4_096).next_step
    assert machine.files_finding(-1, -1).standing == machine.files_finding(20_000, 20_000).standing == "ok"
    (tmp_path / "file").touch()
    assert machine.directory_finding("temporary files", tmp_path / "file" / "below", "TMPDIR").standing == "fail"
    assert machine.directory_finding("cache", tmp_path / "new", "XDG_CACHE_HOME").standing != "fail"


def test_a_gpu_is_told_by_the_tool_of_its_driver(tmp_path, monkeypatch):
    assert [one.standing for one in machine.gpu_findings((tmp_path / "absent",))] == ["note"]
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [one.standing for one in machine.gpu_findings((tmp_path / "nvidiactl",))] == ["warn"]
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, NVL, 143771 MiB, 570.1'\n")
    tool.chmod(0o755)
    (found,) = machine.gpu_findings((tmp_path / "nvidiactl",))
    assert found.found == "NVIDIA H200, NVL, 143771 MiB, driver 570.1"


def test_a_store_is_told_by_what_serves_each_scenario(world, tmp_path):
    found = list(stores.store_findings(str(world.root), None))
    assert [(one.name, one.standing) for one in found] == [("shopping", "ok"), ("standard", "ok")]
    assert found[0].facts["release"] == world.store.current("shopping").release_id
    assert next(stores.store_findings(str(tmp_path / "none"), None)).standing == "note"
    damaged = tmp_path / "store"
    shutil.copytree(world.root, damaged)
    shutil.rmtree(damaged / Path(world.store.paths(world.store.current("shopping")).index).relative_to(world.root))
    broken = one(stores.store_findings(str(damaged), None), "shopping")
    assert broken.standing == "fail"
    assert "adsieve index rollback --scenario shopping" in broken.next_step


def test_what_works_slower_is_a_warning_and_no_failure(tmp_path, monkeypatch):
    """A service without a cache, or without compiled kernels, answers all the same."""
    monkeypatch.setattr(machine, "user_caches", lambda: Path("/proc/nobody"))
    assert one(machine.machine_findings(()), "cache").standing == "warn"
    assert machine.kernels_finding(lambda: True).standing == "ok"
    without = machine.kernels_finding(lambda: False)
    assert (without.standing, without.facts) == ("warn", {"compiled": False})
    monkeypatch.setenv("ADSIEVE_COMPILED", "0")
    assert machine.kernels_finding(lambda: True).next_step == "unset ADSIEVE_COMPILED"
