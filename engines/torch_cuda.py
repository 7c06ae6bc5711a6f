"""A torch program on an NVIDIA GPU, one CUDA graph a shape bucket. Needs torch, and no model code.

A small model on a GPU waits for the launches of its kernels; a CUDA graph launches all of them at once. It is bound to
addresses and shapes, so each bucket has buffers of its own: a call packs its inputs into pinned memory, copies them
across in one piece, replays, and copies the packed outputs back.

The program, the packing and the eager path run in the tests on a CPU. What needs CUDA (capture, replay, pinned copies)
is tested in tests/gpu and has not yet been run on a GPU.

Source: the bucketed static buffers of NVIDIA's and PyTorch's CUDA graph guides: two warm-up calls on a side stream, the
largest shape captured first, so that the smaller ones fit in the pool that all captures share.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contracts.errors import MismatchError
from engines.buckets import BucketedEngine, bucketed, spec_shapes
from engines.cuda_calls import DeviceCall, Shapes, buffer_bytes, capture_all, check_device
from engines.gpu import Gpu
from engines.torch_program import TorchProgram, import_torch, read_program


def open_torch_cuda(
    path: Path,
    *,
    buckets: Mapping[str, Sequence[int]],
    zeros: Sequence[str] = (),
    splits: Sequence[str] = (),
    precision: Literal["fp32", "bf16"] = "bf16",
    gpu: Gpu | None = None,
) -> BucketedEngine:
    """The engine that serves: a program captured for every bucket, behind padding to buckets.

    Args:
        path: A file that ``engines.torch_program_writer`` wrote.
        buckets: Ascending sizes of every dimension that the program names.
        zeros: Dimensions padded with zeros, which a mask rules out; see :class:`BucketedEngine`.
        splits: Dimensions run in pieces above their largest bucket; those that the graph lacks are passed over.
        precision: Of matrix products.
        gpu: The device and its budget; the first device and no limit unless given.
    """
    engine = TorchCudaEngine(path, buckets=buckets, precision=precision, gpu=gpu)
    return bucketed(engine, engine.input_specs, engine.output_specs, buckets=buckets, zeros=zeros, splits=splits)


class TorchCudaEngine:
    """One program on one device, safe to call from several threads: a device runs one call at a time.

    Args:
        path: A file that ``engines.torch_program_writer`` wrote.
        buckets: Sizes of every dimension that the program names; each combination is captured when the engine is made.
            Other shapes run operator by operator. None: nothing is captured.
        precision: ``bf16`` runs matrix products in BF16 as ``torch.autocast`` does; outputs keep their type.
        gpu: The device and its budget; the device ``cpu`` runs the same program without graphs.

    Raises:
        AdsieveError: torch is not installed, or has no such device.
        DeviceMemoryError: The budget has no room.
        ArtifactError: The file is no program.
    """

    name = "torch_cuda"

    def __init__(
        self,
        path: Path,
        *,
        buckets: Mapping[str, Sequence[int]] | None = None,
        precision: Literal["fp32", "bf16"] = "bf16",
        gpu: Gpu | None = None,
    ) -> None:
        if precision not in ("fp32", "bf16"):
            raise ValueError(f"precision must be 'fp32' or 'bf16', got {precision!r}")
        self._torch, gpu = import_torch(), gpu or Gpu()
        torch = self._torch
        check_device(torch, gpu.device, engine=self.name)
        self._path, self._device, self._precision = path, torch.device(gpu.device), precision
        if path.is_file():  # else the next line says so
            gpu.memory.hold(self, self.name, path.stat().st_size)  # its weights, and a graph of little size
        self._program = read_program(path, device=gpu.device)
        self.input_specs, self.output_specs = self._program.inputs, self._program.outputs
        self.inputs = tuple(spec.name for spec in self.input_specs)
        self.outputs = tuple(spec.name for spec in self.output_specs)
        self._lock = threading.Lock()
        shapes = spec_shapes(self.input_specs, buckets) if buckets and self._device.type == "cuda" else []
        gpu.memory.hold(self, self.name, buffer_bytes(self.input_specs, shapes))
        before = self._reserved_bytes()
        with self._on_device(), torch.inference_mode():
            self._captured = {tuple(bucket[name] for name in self.inputs): self._call(bucket) for bucket in shapes}
            if shapes:
                capture_all(torch, self._device, list(self._captured.values()))
        gpu.memory.hold(self, self.name, max(0, self._reserved_bytes() - before))  # known only now

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name.

        Raises:
            MismatchError: The names of ``inputs`` are not exactly those of the program, or an array has another type or
                shape than it takes.
        """
        if inputs.keys() != set(self.inputs):
            raise MismatchError(f"{self._path}: takes inputs {sorted(self.inputs)}, got {sorted(inputs)}")
        for spec in self.input_specs:
            spec.check(self._path, inputs[spec.name])
        key = tuple(inputs[name].shape for name in self.inputs)
        with self._lock, self._on_device(), self._torch.inference_mode():
            call = self._captured.get(key) or self._call(dict(zip(self.inputs, key, strict=True)))
            return call.run(inputs)

    def _call(self, shapes: Shapes) -> DeviceCall:
        return DeviceCall(
            self._torch,
            self._device,
            inputs=self.input_specs,
            shapes=shapes,
            outputs=self.output_specs,
            forward=partial(_forward, self._torch, self._program, self._device.type, self._precision),
        )

    def _reserved_bytes(self) -> int:
        """What torch has taken of the device."""
        return self._torch.cuda.memory_reserved(self._device) if self._device.type == "cuda" else 0

    def _on_device(self) -> AbstractContextManager[Any]:
        return self._torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


def _forward(
    torch: Any, program: TorchProgram, device_type: str, precision: str, inputs: Sequence[Any]
) -> Sequence[Any]:
    """The program with its matrix products in ``precision``. No method: calls would keep their engine alive."""
    with torch.autocast(
        device_type,
        dtype=torch.bfloat16,
        enabled=precision == "bf16",
        cache_enabled=False,  # the memory of cached weights would not belong to the graph that captures them
    ):
        return program(*inputs)
