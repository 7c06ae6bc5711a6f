"""The benchmarks of a GPU run from end to end at tiny sizes on a CPU; that says nothing of a GPU."""

import json
import sys

import pytest
import torch

from benchmarks import gpu_serving, gpu_training

MODULES = {"gpu_serving": gpu_serving, "gpu_training": gpu_training}


def run(module, arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [module.__name__, *arguments])
    code = module.main()
    return code, capsys.readouterr()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("name", list(MODULES))
def test_without_a_device_they_say_so(name, monkeypatch, capsys):
    code, told = run(MODULES[name], [], monkeypatch, capsys)
    assert code == 1
    assert told.out == ""
    assert f"benchmarks.{name} needs a CUDA device: torch {torch.__version__}" in told.err


def figures_of(module, arguments, monkeypatch, capsys):
    code, told = run(module, ["--device", "cpu", "--json", *arguments], monkeypatch, capsys)
    document = json.loads(told.out)
    assert code == 0
    assert document["figures"]["device"] == "cpu, tiny sizes: no figures of a GPU"
    assert all(target["met"] for target in document["targets"] if "error" in target["name"])
    return document["figures"]


def test_the_light_stage(monkeypatch, capsys):
    figures = figures_of(gpu_serving, ["--only", "light"], monkeypatch, capsys)
    assert figures["light, 100 candidates, resident, ms"] > 0
    ratio = figures["light, 1000 candidates, numpy, ms"] / figures["light, 1000 candidates, resident, ms"]
    assert figures["light, 1000 candidates, numpy over resident"] == pytest.approx(ratio)


@pytest.mark.slow
def test_all_that_serves(monkeypatch, capsys):
    figures = figures_of(gpu_serving, ["--threads", "1", "--tensorrt"], monkeypatch, capsys)
    parts = ("query, 1 rows, torch_cuda bf16", "query, 64 rows, onnxruntime_cpu", "heavy, 40 ads, torch_cuda")
    assert all(figures[f"{part}, ms"] > 0 for part in parts)
    reason = "not measured: tensorrt runs on a CUDA device alone, got cpu"
    assert figures["heavy, tensorrt"] == figures["query_tower, tensorrt bf16"] == reason


@pytest.mark.slow
def test_steps_of_training(monkeypatch, capsys):
    figures = figures_of(gpu_training, [], monkeypatch, capsys)
    assert figures["heavy step, on cpu, ms"] > 0
    assert figures["towers step, on cpu, ms"] > 0
