"""TensorRT plans from ONNX graphs: one profile a shape bucket, fp32 or BF16, kept in files under a key.

The network is strongly typed: types are what the graph says, not what a tuner finds fast. For BF16 each matrix product
is given its factors in BF16 and its result is turned back to fp32, as ``torch.autocast`` does; TensorRT folds the casts
of weights. Only exact shapes are tuned for, since ``engines.buckets`` pads to them.

Checked here with TensorRT for RTX, which parses and builds without a GPU; TensorRT itself has not yet been run.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from contracts.errors import AdsieveError, ArtifactError

Shapes = Mapping[str, tuple[int, ...]]
Precision = Literal["fp32", "bf16"]


def import_tensorrt() -> Any:
    """TensorRT, else TensorRT for RTX, whose interface is the same.

    Raises:
        AdsieveError: Neither is installed.
    """
    try:
        import tensorrt
    except ImportError:
        try:
            import tensorrt_rtx as tensorrt
        except ImportError as error:
            raise AdsieveError("TensorRT is not installed: pip install -r requirements/gpu.txt") from error
    return tensorrt


def plan_key(path: Path, *, library: Any, architecture: str, precision: Precision, shapes: Sequence[Shapes]) -> str:
    """What a plan depends on, as a file name: the graph, the GPU, the precision, the library and the profiles.

    Args:
        path: The ``.onnx`` file.
        library: The module that builds.
        architecture: Of the GPU, such as ``sm90``.
        precision: Of matrix products.
        shapes: Of all inputs for each bucket.
    """
    profiles = [{name: list(bucket[name]) for name in sorted(bucket)} for bucket in shapes]
    graph = hashlib.sha256(path.read_bytes()).hexdigest()
    parts = [graph, library.__name__, library.__version__, architecture, precision, profiles]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


def build_plan(
    library: Any, path: Path, *, shapes: Sequence[Shapes], precision: Precision, architecture: str | None = None
) -> bytes:
    """A serialised engine with one optimisation profile for each of ``shapes``, in their order.

    Two builds of one graph may differ in bytes (small ones did not, the heavy request graph did), so a plan is known by
    what it was built from, never by its content.

    Args:
        library: ``tensorrt`` or ``tensorrt_rtx``.
        path: The ``.onnx`` file.
        shapes: Of all inputs for each bucket.
        precision: Of matrix products.
        architecture: The GPU to build for, such as ``sm86``: TensorRT for RTX can name one that is absent. None: the
            one that is here.

    Raises:
        ArtifactError: The graph cannot be parsed or built.
        ValueError: No shapes are given, or they miss an input.
    """
    if not shapes:
        raise ValueError("a plan needs the shapes of at least one bucket")
    builder = library.Builder(library.Logger(library.Logger.ERROR))
    network = _parsed(library, builder, path)
    if precision == "bf16":
        _multiply_in_bf16(library, network)
    config = builder.create_builder_config()
    config.clear_flag(library.BuilderFlag.TF32)  # fp32 is exact, and BF16 is asked for by name
    for bucket in shapes:
        config.add_optimization_profile(_profile(builder, network, bucket))
    if architecture is not None:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(library.ComputeCapability, architecture.upper()), 0)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ArtifactError(f"{path}: TensorRT {library.__version__} cannot build this graph for {list(shapes)}")
    return bytes(plan)


def plan_file(
    library: Any, path: Path, directory: Path, *, shapes: Sequence[Shapes], precision: Precision, architecture: str
) -> Path:
    """Where the plan of a graph lies in ``directory``; other graph, GPU, precision, library or shapes, other file."""
    key = plan_key(path, library=library, architecture=architecture, precision=precision, shapes=shapes)
    return directory / f"{key}.plan"


def cached_plan(
    library: Any, path: Path, directory: Path, *, shapes: Sequence[Shapes], precision: Precision, architecture: str
) -> bytes:
    """The plan of a graph from ``directory``, built and put there first if it is not.

    The file appears whole, written aside and renamed, so that workers that start together cannot read half of one.
    """
    file = plan_file(library, path, directory, shapes=shapes, precision=precision, architecture=architecture)
    if file.is_file():
        return file.read_bytes()
    plan = build_plan(library, path, shapes=shapes, precision=precision)
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / f".{file.stem}.{os.getpid()}"
    try:
        aside.write_bytes(plan)
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
    return plan


def _parsed(library: Any, builder: Any, path: Path) -> Any:
    network = builder.create_network(1 << int(library.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = library.OnnxParser(network, builder.logger)
    if not path.is_file():
        raise ArtifactError(f"{path}: no such file, expected an ONNX graph")
    if not parser.parse(path.read_bytes()):
        errors = "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
        raise ArtifactError(f"{path}: TensorRT {library.__version__} cannot parse this graph: {errors}")
    return network


def _profile(builder: Any, network: Any, bucket: Shapes) -> Any:
    profile = builder.create_optimization_profile()
    names = [network.get_input(i).name for i in range(network.num_inputs)]
    if set(names) != set(bucket):
        raise ValueError(f"shapes must be given for inputs {sorted(names)}, got {sorted(bucket)}")
    for name in names:
        profile.set_shape(name, bucket[name], bucket[name], bucket[name])
    return profile


def _multiply_in_bf16(library: Any, network: Any) -> None:
    """Cast the factors of every fp32 matrix product to BF16 and its result back."""
    readers, products = _readers(network), (library.LayerType.MATRIX_MULTIPLY, library.LayerType.EINSUM)
    for layer in [network.get_layer(i) for i in range(network.num_layers)]:
        result = layer.get_output(0)
        if layer.type not in products or result.dtype != library.float32:
            continue
        for i in range(layer.num_inputs):
            layer.set_input(i, network.add_cast(layer.get_input(i), library.bfloat16).get_output(0))
        back = network.add_cast(result, library.float32).get_output(0)
        for reader, position in readers.get(result.name, []):
            reader.set_input(position, back)
        if result.is_network_output:
            _rename_output(network, result, back)


def _readers(network: Any) -> dict[str, list[tuple[Any, int]]]:
    """Name of a tensor to the layers that read it, and as which of their inputs."""
    readers: dict[str, list[tuple[Any, int]]] = {}
    for layer in [network.get_layer(i) for i in range(network.num_layers)]:
        for position in range(layer.num_inputs):
            tensor = layer.get_input(position)
            if tensor is not None:
                readers.setdefault(tensor.name, []).append((layer, position))
    return readers


def _rename_output(network: Any, result: Any, back: Any) -> None:
    """Let ``back`` be the network's output that ``result`` was."""
    name = result.name
    network.unmark_output(result)
    result.name = f"{name}.bf16"
    back.name = name
    network.mark_output(back)
