"""Modules of tests, which are no package, by their files."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[1]


def load(path: str | Path) -> ModuleType:
    """The module in a file below tests, such as ``service/sealing.py``, or elsewhere in the project, made anew."""
    file = TESTS / path
    name = "_".join(file.relative_to(TESTS.parent).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file}: no module")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # known by name: dataclasses look it up
    spec.loader.exec_module(module)
    return module
