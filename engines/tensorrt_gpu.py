"""TensorRT on an NVIDIA GPU: one execution context and one CUDA graph a shape bucket.

Contexts share one block of activation memory, which is sound because calls never overlap; torch owns that memory, the
pinned buffers and the captures. The builder is checked without a GPU (``engines.tensorrt_build``). **What this file
does has not yet been run on a GPU**; its tests are in tests/gpu.

Source: NVIDIA's advice on captures: a context a graph, one call before it is captured, no change of profile afterwards.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from contracts.errors import ArtifactError, MismatchError
from engines.cuda_calls import DeviceCall, Shapes, capture_all, check_device, size_of
from engines.tensor_spec import TensorSpec
from engines.tensorrt_build import Precision, cached_plan, import_tensorrt
from engines.torch_program import import_torch


class TensorRtEngine:
    """One ONNX graph as a TensorRT engine, safe to call from several threads: a device runs one call at a time.

    Made in seconds where its plan is cached and in minutes where it must be built: never within a request.

    Args:
        path: The ``.onnx`` file.
        shapes: Shapes of all inputs for each bucket, as ``engines.buckets.bucket_shapes`` lists them. Other shapes are
            refused.
        cache: Directory of plans, shared by workers.
        precision: Of matrix products; inputs and outputs stay as the graph declares them.
        device: ``cuda`` or ``cuda:1``.

    Raises:
        AdsieveError: TensorRT or torch is not installed, or there is no such device.
        ArtifactError: The graph cannot be built, or its plan cannot be loaded.
    """

    name = "tensorrt"

    def __init__(
        self, path: Path, *, shapes: Sequence[Shapes], cache: Path, precision: Precision = "bf16", device: str = "cuda"
    ) -> None:
        library, self._torch = import_tensorrt(), import_torch()
        check_device(self._torch, device, engine=self.name)
        self._path, self._device = path, self._torch.device(device)
        self._lock = threading.Lock()
        buckets = sorted(shapes, key=size_of, reverse=True)
        with self._torch.cuda.device(self._device), self._torch.inference_mode():
            plan = cached_plan(
                library, path, cache, shapes=buckets, precision=precision, architecture=self._architecture()
            )
            self._runtime = library.Runtime(library.Logger(library.Logger.ERROR))
            self._engine = self._runtime.deserialize_cuda_engine(plan)
            if self._engine is None:
                raise ArtifactError(f"{path}: TensorRT {library.__version__} cannot load the plan in {cache}")
            specs = _specs(library, self._engine)
            self._inputs, self._outputs = specs[library.TensorIOMode.INPUT], specs[library.TensorIOMode.OUTPUT]
            self.inputs = tuple(spec.name for spec in self._inputs)
            self.outputs = tuple(spec.name for spec in self._outputs)
            self._memory = self._activation_memory(len(buckets))
            calls = [self._call(library, profile, bucket) for profile, bucket in enumerate(buckets)]
            capture_all(self._torch, self._device, calls)
        keys = [tuple(tuple(bucket[name]) for name in self.inputs) for bucket in buckets]
        self._calls = dict(zip(keys, calls, strict=True))

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name.

        Raises:
            MismatchError: The names of ``inputs`` are not exactly those of the graph, or no bucket has these shapes.
        """
        if inputs.keys() != set(self.inputs):
            raise MismatchError(f"{self._path}: takes inputs {sorted(self.inputs)}, got {sorted(inputs)}")
        for spec in self._inputs:
            spec.check(self._path, inputs[spec.name])
        key = tuple(inputs[name].shape for name in self.inputs)
        call = self._calls.get(key)
        if call is None:
            raise MismatchError(f"{self._path}: no bucket has shapes {dict(zip(self.inputs, key, strict=True))}")
        with self._lock, self._torch.cuda.device(self._device), self._torch.inference_mode():
            return call.run(inputs)

    def _architecture(self) -> str:
        major, minor = self._torch.cuda.get_device_capability(self._device)
        return f"sm{major}{minor}"

    def _activation_memory(self, profiles: int) -> Any:
        sizes = [self._engine.get_device_memory_size_for_profile_v2(profile) for profile in range(profiles)]
        return self._torch.empty(max(*sizes, 1), dtype=self._torch.uint8, device=self._device)

    def _call(self, library: Any, profile: int, bucket: Shapes) -> DeviceCall:
        return DeviceCall(
            self._torch,
            self._device,
            inputs=self._inputs,
            shapes=bucket,
            outputs=self._outputs,
            forward=self._forward(library, profile, bucket),
        )

    def _forward(self, library: Any, profile: int, bucket: Shapes) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """The engine at one profile, in a context and with outputs of its own."""
        torch = self._torch
        context = self._engine.create_execution_context(library.ExecutionContextAllocationStrategy.USER_MANAGED)
        context.set_device_memory(self._memory.data_ptr(), self._memory.numel())
        stream = torch.cuda.current_stream(self._device)
        context.set_optimization_profile_async(profile, stream.cuda_stream)
        stream.synchronize()
        for name, shape in bucket.items():
            context.set_input_shape(name, shape)
        outputs = [
            torch.empty(
                tuple(context.get_tensor_shape(spec.name)), dtype=getattr(torch, spec.dtype), device=self._device
            )
            for spec in self._outputs
        ]

        def forward(inputs: Sequence[Any]) -> Sequence[Any]:
            for spec, tensor in zip((*self._inputs, *self._outputs), (*inputs, *outputs), strict=True):
                context.set_tensor_address(spec.name, tensor.data_ptr())
            if not context.execute_async_v3(torch.cuda.current_stream(self._device).cuda_stream):
                raise ArtifactError(f"{self._path}: TensorRT failed to run the graph at shapes {dict(bucket)}")
            return outputs

        return forward


def _specs(library: Any, engine: Any) -> dict[Any, list[TensorSpec]]:
    """Inputs and outputs of an engine by mode."""
    specs: dict[Any, list[TensorSpec]] = {library.TensorIOMode.INPUT: [], library.TensorIOMode.OUTPUT: []}
    for name in (engine.get_tensor_name(i) for i in range(engine.num_io_tensors)):
        shape = [size if size >= 0 else None for size in engine.get_tensor_shape(name)]
        dtype = np.dtype(library.nptype(engine.get_tensor_dtype(name))).name
        specs[engine.get_tensor_mode(name)].append(TensorSpec(name=name, dtype=dtype, shape=shape))
    return specs
