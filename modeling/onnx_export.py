"""Exports a trained module to one ONNX file, with named inputs and batch sizes that may vary."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

OPSET = 18
"""Pinned, so that a graph does not change with the exporter's default; ONNX Runtime, OpenVINO and TensorRT read it."""


def export(
    module: nn.Module,
    example_inputs: Mapping[str, Tensor],
    path: Path,
    *,
    dynamic: Mapping[str, Mapping[int, str]],
    output_names: Sequence[str],
) -> torch.export.ExportedProgram:
    """Write ``module`` in evaluation mode as a single ONNX file, and check it.

    Args:
        module: Takes the inputs in the order of ``example_inputs`` and returns a tensor or a flat tuple of tensors.
        example_inputs: By the names that the graph will have. A dimension that may vary is 2 or more here, since the
            exporter takes 0 and 1 for constants.
        path: File to write.
        dynamic: Per input, the dimensions that may vary and the name of each; the same name is the same size.
        output_names: In the order in which the module returns them.

    Returns:
        The ``torch.export`` program that the file was made from: it needs torch but no model code to run, and gives a
        tuple.

    Raises:
        ValueError: An input named in ``dynamic`` does not exist, or one of its dimensions is smaller than 2.
    """
    shapes = _dynamic_shapes(example_inputs, dynamic)
    was_training = module.training
    with _quiet(), torch.no_grad():
        arguments = tuple(example_inputs.values())
        traced = torch.export.export(_Positional(module).eval(), arguments, dynamic_shapes=shapes)
        program = torch.onnx.export(
            traced,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(example_inputs),
            output_names=list(output_names),
            dynamic_shapes=shapes,
            verbose=False,
        )
    module.train(was_training)
    program.save(str(path), external_data=False)
    onnx.checker.check_model(str(path), full_check=True)
    return traced


class _Positional(nn.Module):
    """Gives every module the same signature, whatever its arguments are called and however many tensors it gives."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = self.module(*inputs)
        return (outputs,) if isinstance(outputs, Tensor) else outputs


def _dynamic_shapes(
    example_inputs: Mapping[str, Tensor], dynamic: Mapping[str, Mapping[int, str]]
) -> tuple[tuple[dict[int, Any] | None, ...]]:
    _check(example_inputs, dynamic)
    names = {name for axes in dynamic.values() for name in axes.values()}
    sizes = {name: torch.export.Dim(name, min=1) for name in sorted(names)}
    axes = ({axis: sizes[size] for axis, size in dynamic.get(name, {}).items()} for name in example_inputs)
    return (tuple(found or None for found in axes),)


def _check(example_inputs: Mapping[str, Tensor], dynamic: Mapping[str, Mapping[int, str]]) -> None:
    for name, axes in dynamic.items():
        if name not in example_inputs:
            raise ValueError(f"dynamic names input {name!r}, expected one of {', '.join(example_inputs)}")
        shape = tuple(example_inputs[name].shape)
        for axis, size in axes.items():
            if shape[axis] < 2:
                raise ValueError(f"{name}: dimension {axis} ({size}) varies and must be 2 or more here, got {shape}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress and warnings off the user's terminal; its errors still rise as exceptions."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
