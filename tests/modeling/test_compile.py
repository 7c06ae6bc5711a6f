"""Compiling: when a run does it, what happens without a compiler, and one graph for all sizes."""

import logging

import pytest
import torch

from modeling import compile as compile_module
from modeling.compile import WORTHWHILE_FLOPS, compiled, has_compiler, resolve_compile


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    compile_module._say_eager.cache_clear()


def test_auto_depends_on_the_length_of_the_run_alone():
    assert not resolve_compile("auto", run_flops=WORTHWHILE_FLOPS / 2)
    assert resolve_compile("auto", run_flops=WORTHWHILE_FLOPS)
    assert resolve_compile(True, run_flops=0.0)
    assert not resolve_compile(False, run_flops=1e20)


def test_without_a_compiler_the_function_runs_as_it_is_and_that_is_said_once(no_compiler, caplog):
    def double(x):
        return x * 2

    with caplog.at_level(logging.WARNING, logger="modeling.compile"):
        assert compiled(double) is double
        assert compiled(double) is double
    assert [record.message for record in caplog.records] == [
        "not compiled: there is no C++ compiler with Python's headers here (g++, or CXX); running eagerly"
    ]


@pytest.mark.skipif(not has_compiler(), reason="needs g++ and Python's headers")
def test_compiled_values_and_gradients_are_the_eager_ones_at_every_size_from_one_graph():
    def gated(x, weight):
        return torch.nn.functional.silu(x @ weight).square().sum(-1)

    torch._dynamo.reset()
    fast, weight = compiled(gated), torch.randn(8, 6, requires_grad=True)
    for rows in (5, 9, 64, 7):
        x = torch.randn(rows, 8)
        expected, found = gated(x, weight), fast(x, weight)
        torch.testing.assert_close(found, expected)
        gradients = (torch.autograd.grad(value.sum(), weight)[0] for value in (found, expected))
        torch.testing.assert_close(*gradients)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
