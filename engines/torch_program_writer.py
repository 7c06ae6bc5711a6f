"""Writes a ``torch.export`` program as the file that ``engines.torch_program`` reads."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import ArtifactError
from engines.tensor_spec import TensorSpec
from engines.torch_program import FORMAT, HEADER, SIZE_OPERATORS, Call, Graph, import_torch, is_safe

SAME_WHATEVER_THE_STRIDES = {
    "aten.view.default": "aten.reshape.default",
    "aten._unsafe_view.default": "aten.reshape.default",
}
"""Another device may lay a result out in another way, which ``view`` refuses."""


def write_program(
    exported: Any,
    path: Path,
    *,
    input_names: Sequence[str],
    output_names: Sequence[str],
    dynamic: Mapping[str, Mapping[int, str]],
) -> None:
    """Write a ``torch.export.ExportedProgram`` of tensors in, tensors out.

    Args:
        exported: What ``torch.export.export`` returned.
        path: File to write.
        input_names: In the order of the program's inputs.
        output_names: In the order of its outputs.
        dynamic: Per input, the axes that vary and the name of each, as ``modeling.onnx_export.export`` takes them.

    Raises:
        ArtifactError: The program calls what is no ATen operator, or takes and gives what are no tensors.
    """
    from safetensors.torch import save_file

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its own classes
        program = exported.run_decompositions({})  # nothing is; operators that write in place become functions
    nodes = {node.name: node for node in program.graph.nodes}
    results = list(program.graph.output_node().args[0])
    needed = _needed(results)
    places, weights = _placeholders(program, needed)
    names = list(weights)
    numbers = {place: i for i, place in enumerate([*places, *(weights[name][0] for name in names)])}
    if len(places) != len(input_names) or len(results) != len(output_names):
        raise ArtifactError(
            f"{path}: the program has {len(places)} inputs and {len(results)} outputs, "
            f"names are {list(input_names)} and {list(output_names)}"
        )
    inputs = dict(zip(input_names, (nodes[place] for place in places), strict=True))
    sizes = {
        str(inputs[name].meta["val"].shape[axis]): size for name, axes in dynamic.items() for axis, size in axes.items()
    }
    graph = Graph(
        format=FORMAT,
        inputs=[_spec(name, node, sizes) for name, node in inputs.items()],
        weights=names,
        calls=_calls([node for node in program.graph.nodes if node in needed], numbers),
        outputs=[_spec(name, node, sizes) for name, node in zip(output_names, results, strict=True)],
        results=[numbers[node.name] for node in results],
    )
    tensors = {name: weights[name][1].detach().cpu().contiguous().clone() for name in names}
    save_file(tensors, path, metadata={HEADER: msgspec.json.encode(graph).decode()})


def _needed(results: Sequence[Any]) -> set[Any]:
    """All that the results are computed from: not the checks of sizes, nor the weights of another stage."""
    needed: set[Any] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return needed


def _placeholders(program: Any, needed: set[Any]) -> tuple[list[str], dict[str, tuple[str, Any]]]:
    """Names of the user's inputs in the graph; and each weight's name with that in the graph and its tensor."""
    used = {node.name for node in needed}
    places, weights = [], {}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            places.append(spec.arg.name)
        elif spec.arg.name in used:
            tensor = program.state_dict.get(spec.target, program.constants.get(spec.target))
            weights[spec.target] = (spec.arg.name, tensor)
    return places, weights


def _calls(nodes: Sequence[Any], numbers: dict[str, int]) -> list[Call]:
    """The calls among ``nodes``, in order; ``numbers`` gains theirs."""
    calls = []
    for node in nodes:
        if node.op == "call_function":
            kwargs = {name: _encoded(argument, numbers) for name, argument in node.kwargs.items()}
            calls.append(Call(op=_name(node), args=_encoded(node.args, numbers), kwargs=kwargs))
            numbers[node.name] = len(numbers)
    return calls


def _name(node: Any) -> str:
    name = str(node.target)
    name = SAME_WHATEVER_THE_STRIDES.get(name, name)
    if is_safe(name):
        return name
    size = f"size.{getattr(node.target, '__name__', '')}"
    if size in SIZE_OPERATORS:
        return size
    raise ArtifactError(f"{node.name} calls {name}, which is no ATen operator: export the module in evaluation mode")


def _spec(name: str, node: Any, sizes: Mapping[str, str]) -> TensorSpec:
    """``sizes`` names the symbols that the exporter made up; a size computed from several keeps its formula."""
    value = node.meta["val"]
    shape = [size if isinstance(size, int) else sizes.get(str(size), str(size)) for size in value.shape]
    return TensorSpec(name=name, dtype=str(value.dtype).removeprefix("torch."), shape=shape)


def _encoded(argument: Any, numbers: dict[str, int]) -> Any:
    """An argument as JSON: plain values as they are, others as an object with one key that says what they are."""
    torch = import_torch()
    if isinstance(argument, torch.fx.Node):
        return {"value": numbers[argument.name]}
    if isinstance(argument, (list, tuple)):
        return [_encoded(part, numbers) for part in argument]
    if isinstance(argument, torch.device):
        return {"device": None}
    for kind in ("dtype", "layout", "memory_format"):
        if isinstance(argument, getattr(torch, kind)):
            return {kind: str(argument).removeprefix("torch.")}
    if isinstance(argument, float):
        return {"float": repr(argument)}
    if argument is None or isinstance(argument, (bool, int, str)):
        return argument
    raise ArtifactError(f"argument {argument!r} of type {type(argument).__name__} has no place in a program")
