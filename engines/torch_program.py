"""A torch.export program as a file that holds no code: operators of the graph as JSON, weights as safetensors.

``torch.export.load`` will not do for a bundle. In torch 2.13 it unpickles whatever objects a file holds (it tries
``weights_only=True`` and falls back to ``False``), and evaluates symbolic sizes as Python expressions. Here a program
is one safetensors file whose header carries the graph: a list of calls of ATen operators, by name, on values by number.
Reading it looks operators up in ``torch.ops.aten`` and runs nothing else; running it needs torch and no model code.
``engines.torch_program_writer`` writes it.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import AdsieveError, ArtifactError
from engines.tensor_spec import TensorSpec

FORMAT = 1
HEADER = "adsieve.program"
ATEN = re.compile(r"aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")
FORBIDDEN = frozenset({"from_file", "set"})
"""ATen operators that reach outside their arguments: a file, or another tensor's memory."""
SIZE_OPERATORS: dict[str, Callable[..., Any]] = {
    f"size.{function.__name__}": function
    for function in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.getitem)
}
"""Arithmetic on sizes, and the choice of one result of several."""


class Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operator. ``{"value": n}`` among its arguments is the n-th value: inputs, then weights, then calls."""

    op: str
    args: list[Any]
    kwargs: dict[str, Any] = {}


class Graph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program but for its weights."""

    format: int
    inputs: list[TensorSpec]
    weights: list[str]
    calls: list[Call]
    outputs: list[TensorSpec]
    results: list[int]


@dataclass(frozen=True)
class _Value:
    number: int


class TorchProgram:
    """A program on one device; call it with its inputs in order, and it returns its outputs in order.

    Args:
        graph: Calls, by number.
        weights: In the order of ``graph.weights``, on the device.
        device: Where tensors that the program itself makes are placed.
    """

    def __init__(self, graph: Graph, weights: Sequence[Any], device: Any) -> None:
        torch = import_torch()
        self.inputs, self.outputs = tuple(graph.inputs), tuple(graph.outputs)
        self._weights, self._results = tuple(weights), tuple(graph.results)
        self._calls = [
            (
                _operator(torch, call.op),
                [_decoded(torch, argument, device) for argument in call.args],
                {name: _decoded(torch, argument, device) for name, argument in call.kwargs.items()},
            )
            for call in graph.calls
        ]
        self._dead = _dead_after(self._calls, len(self.inputs) + len(self._weights), self._results)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values = [*inputs, *self._weights]
        for (function, args, kwargs), dead in zip(self._calls, self._dead, strict=True):
            values.append(
                function(
                    *(_filled(argument, values) for argument in args),
                    **{name: _filled(argument, values) for name, argument in kwargs.items()},
                )
            )
            for number in dead:
                values[number] = None
        return tuple(values[number] for number in self._results)


def read_program(path: Path, *, device: str) -> TorchProgram:
    """The program of a file that ``write_program`` wrote, with its weights on ``device``.

    Raises:
        AdsieveError: torch is not installed.
        ArtifactError: The file is missing, truncated, of another format, or calls what is no ATen operator.
    """
    torch = import_torch()
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ArtifactError(f"{path}: no such file, expected a program")
    try:
        with safe_open(path, framework="pt", device=device) as file:
            header = (file.metadata() or {}).get(HEADER)
            if header is None:
                raise ArtifactError(f"{path}: holds no program, its header lacks {HEADER}")
            graph = msgspec.json.decode(header, type=Graph)
            weights = [file.get_tensor(name) for name in graph.weights]
        if graph.format != FORMAT:
            raise ArtifactError(f"{path}: program format {graph.format}, this version reads {FORMAT}: export it anew")
        return TorchProgram(graph, weights, torch.device(device))
    except (SafetensorError, msgspec.MsgspecError, ValueError) as error:
        raise ArtifactError(f"{path}: not a program: {error}") from error


def import_torch() -> Any:
    """torch, or which command installs it."""
    try:
        import torch
    except ImportError as error:
        raise AdsieveError("torch is not installed: pip install -r requirements/gpu.txt") from error
    return torch


def is_safe(name: str) -> bool:
    """Whether ``name`` is of an ATen operator that computes from its arguments and changes nothing."""
    match = ATEN.fullmatch(name)
    return match is not None and match[1] not in FORBIDDEN and not match[1].endswith("_")


def _decoded(torch: Any, argument: Any, device: Any) -> Any:
    """An argument as the operator takes it, but for values, which each call fills in."""
    if isinstance(argument, list):
        return [_decoded(torch, part, device) for part in argument]
    if not isinstance(argument, dict):
        return argument
    match argument:
        case {"value": int(number)} if number >= 0:
            return _Value(number)
        case {"device": None}:
            return device
        case {"float": str(text)}:
            return float(text)
        case {"dtype": str(name)} | {"layout": str(name)} | {"memory_format": str(name)}:
            return _member(torch, next(iter(argument)), name)
        case _:
            raise ValueError(f"unknown argument {argument}")


def _member(torch: Any, kind: str, name: str) -> Any:
    value = getattr(torch, name, None)
    if not isinstance(value, getattr(torch, kind)):
        raise ValueError(f"torch has no {kind} {name!r}")
    return value


def _operator(torch: Any, name: str) -> Callable[..., Any]:
    if name in SIZE_OPERATORS:
        return SIZE_OPERATORS[name]
    match = ATEN.fullmatch(name)
    packet = getattr(torch.ops.aten, match[1], None) if match and is_safe(name) else None
    function = getattr(packet, match[2], None) if packet is not None and match else None
    if not isinstance(function, torch._ops.OpOverload):
        raise ValueError(f"{name!r} is no ATen operator of torch {torch.__version__}")
    return function


def _filled(argument: Any, values: Sequence[Any]) -> Any:
    if isinstance(argument, _Value):
        return values[argument.number]
    if isinstance(argument, list):
        return [_filled(part, values) for part in argument]
    return argument


def _dead_after(calls: Sequence[tuple[Any, Any, Any]], first: int, results: Sequence[int]) -> list[list[int]]:
    """After each call, the values that no later one reads: their memory is free for the next."""
    last: dict[int, int] = {}
    for position, (_, args, kwargs) in enumerate(calls):
        read = _numbers([*args, *kwargs.values()])
        if any(number >= first + position for number in read):
            raise ValueError(f"call {position} reads a value that comes later")
        last |= dict.fromkeys([*read, first + position], position)
    if not all(0 <= number < first + len(calls) for number in results):
        raise ValueError(f"results {list(results)} name values that no call computes")
    dead: list[list[int]] = [[] for _ in calls]
    for number in last.keys() - set(results):
        dead[last[number]].append(number)
    return dead


def _numbers(argument: Any) -> list[int]:
    if isinstance(argument, _Value):
        return [argument.number]
    return [number for part in argument for number in _numbers(part)] if isinstance(argument, list) else []
