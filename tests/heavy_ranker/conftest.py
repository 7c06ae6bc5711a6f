"""Seeds, the plain reference forms, and randomised modules, so that no test passes because a weight is zero or one."""

import importlib.util
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(7)


@pytest.fixture(scope="session")
def reference():
    """The module reference.py beside this file (tests are no package, so it cannot be imported by name)."""
    spec = importlib.util.spec_from_file_location("heavy_ranker_reference", Path(__file__).with_name("reference.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def randomised():
    """Replace every parameter by random values: gains are no longer one, biases no longer zero."""

    def apply(module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.1)
        return module

    return apply
