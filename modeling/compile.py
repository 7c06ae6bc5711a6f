"""Compiling a function of tensors where that pays, and running it as it is where it does not or cannot.

What is compiled is a function, not a module: a model keeps its parameters' names, so that checkpoints and bundles do
not depend on how a run was executed.
"""

import logging
import os
import shutil
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

Compile = bool | Literal["auto"]

WORTHWHILE_FLOPS = 3e14
"""A run's FLOPs from which on compiling earns back twice the minute that it takes on two cores; see
benchmarks/heavy_training.py, which prints both sides of the account."""

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


def resolve_compile(choice: Compile, *, run_flops: float) -> bool:
    """``auto`` compiles where the whole run is long enough; it depends on sizes alone, so a resumed run decides alike.

    Args:
        choice: As configured.
        run_flops: FLOPs of all forward and backward passes of the run, over all processes.

    Example:
        >>> resolve_compile("auto", run_flops=1e12), resolve_compile(True, run_flops=1e12)
        (False, True)
    """
    return run_flops >= WORTHWHILE_FLOPS if choice == "auto" else choice


@torch.no_grad()
def step_flops(forward: Callable[[], object]) -> float:
    """FLOPs of one training step: those of the forward pass given, and twice as many of the backward pass."""
    with FlopCounterMode(display=False) as counter:
        forward()
    return 3.0 * counter.get_total_flops()


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """The function compiled for any sizes of its tensors' axes; itself, with one log line, without a C++ compiler.

    Sizes are symbols from the first call on: batches of whole requests differ in every axis from step to step, and a
    compilation for each would take longer than training. Tensors of a single row are still a case of their own.
    """
    if not has_compiler():
        _say_eager()
        return function
    return torch.compile(function, dynamic=True)


def has_compiler() -> bool:
    """Whether there is what TorchInductor compiles with: a C++ compiler and Python's own headers."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    return compiler is not None and (Path(sysconfig.get_path("include")) / "Python.h").exists()


@cache
def _say_eager() -> None:
    _log.warning("not compiled: there is no C++ compiler with Python's headers here (g++, or CXX); running eagerly")
