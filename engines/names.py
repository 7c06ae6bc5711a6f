"""The engines by name, which of them this machine may have, and where their files lie."""

from pathlib import Path
from typing import Literal, get_args

from contracts.caches import user_caches
from contracts.errors import ConfigError

EngineName = Literal["onnxruntime_cpu", "openvino_fp32", "openvino_bf16", "torch_cuda", "tensorrt"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
EXACT_ENGINE: EngineName = "onnxruntime_cpu"
"""Serves where results must not depend on what a machine measured: fp32, and on every machine."""
GPU_ENGINES: tuple[EngineName, ...] = ("torch_cuda", "tensorrt")
NVIDIA_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""One exists where a process can reach an NVIDIA GPU; asking torch would cost seconds on every other machine."""


def has_nvidia_gpu() -> bool:
    """Whether this process may reach an NVIDIA GPU."""
    return any(device.exists() for device in NVIDIA_DEVICES)


def engines_here() -> tuple[EngineName, ...]:
    """The engines worth trying on this machine."""
    has_gpu = has_nvidia_gpu()
    return tuple(name for name in ENGINES if has_gpu or name not in GPU_ENGINES)


def unknown_engine(name: str) -> ConfigError:
    """The error for what is no engine's name."""
    return ConfigError(f"engine: expected auto or one of {', '.join(ENGINES)}, got {name!r}")


def program_path(graph: Path) -> Path:
    """Where the torch program of an ONNX graph lies: beside it.

    Example:
        >>> program_path(Path("ads.onnx")).name
        'ads.program.safetensors'
    """
    return graph.with_suffix(".program.safetensors")


def plans_directory(version: str) -> Path:
    """Where TensorRT's plans of a bundle are kept: beside the user's other caches, since a bundle is sealed."""
    return user_caches() / "plans" / version
