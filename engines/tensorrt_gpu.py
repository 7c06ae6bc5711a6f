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

from contracts.errors import AdsieveError, ArtifactError, MismatchError
from engines.buckets import BucketedEngine, bucketed, spec_shapes
from engines.cuda_calls import DeviceCall, Shapes, buffer_bytes, capture_all, check_device
from engines.gpu import Gpu
from engines.onnxruntime_cpu import onnx_specs
from engines.plan_builds import PlanRequest
from engines.tensorrt_build import Precision, import_tensorrt
from engines.torch_program import import_torch


def open_tensorrt(
    path: Path,
    *,
    buckets: Mapping[str, Sequence[int]],
    cache: Path,
    zeros: Sequence[str] = (),
    splits: Sequence[str] = (),
    precision: Precision = "bf16",
    gpu: Gpu | None = None,
) -> BucketedEngine:
    """The engine that serves: a plan with a profile for every bucket, behind padding to buckets.

    Args:
        path: The ``.onnx`` file.
        buckets: Ascending sizes of every dimension that the graph names.
        cache: Directory of plans, shared by workers.
        zeros: Dimensions padded with zeros, which a mask rules out; see :class:`BucketedEngine`.
        splits: Dimensions run in pieces above their largest bucket; those that the graph lacks are passed over.
        precision: Of matrix products.
        gpu: The device, its budget, and how plans for it come about; the first device and no limit unless given.
    """
    engine = TensorRtEngine(path, buckets=buckets, cache=cache, precision=precision, gpu=gpu)
    return bucketed(engine, engine.input_specs, engine.output_specs, buckets=buckets, zeros=zeros, splits=splits)


class TensorRtEngine:
    """One ONNX graph as a TensorRT engine, safe to call from several threads: a device runs one call at a time.

    Made in seconds where its plan is cached and in minutes where it must be built: never within a request.

    Args:
        path: The ``.onnx`` file.
        buckets: Sizes of every dimension that the graph names; each combination has a profile, others are refused.
        cache: Directory of plans, shared by workers.
        precision: Of matrix products; inputs and outputs stay as the graph declares them.
        gpu: The device, its budget, and how plans for it come about; the first device and no limit unless given.

    Raises:
        AdsieveError: TensorRT or torch is not installed, or there is no such device.
        EngineNotNowError: Its plan is being built, or its budget has no room.
        ArtifactError: The graph cannot be built, or its plan cannot be loaded.
    """

    name = "tensorrt"

    def __init__(
        self,
        path: Path,
        *,
        buckets: Mapping[str, Sequence[int]],
        cache: Path,
        precision: Precision = "bf16",
        gpu: Gpu | None = None,
    ) -> None:
        library, self._torch, gpu = import_tensorrt(), import_torch(), gpu or Gpu()
        if not gpu.device.startswith("cuda"):
            raise AdsieveError(f"tensorrt runs on a CUDA device alone, got {gpu.device}")
        check_device(self._torch, gpu.device, engine=self.name)
        self._path, self._device = path, self._torch.device(gpu.device)
        self._lock = threading.Lock()
        self.input_specs, self.output_specs = onnx_specs(path)
        self.inputs = tuple(spec.name for spec in self.input_specs)
        self.outputs = tuple(spec.name for spec in self.output_specs)
        shapes = spec_shapes(self.input_specs, buckets)
        with self._torch.cuda.device(self._device), self._torch.inference_mode():
            plan = gpu.plan(
                PlanRequest(
                    library=library,
                    graph=path,
                    directory=cache,
                    shapes=shapes,
                    precision=precision,
                    architecture=self._architecture(),
                )
            )
            gpu.memory.hold(self, self.name, len(plan) + buffer_bytes(self.input_specs, shapes))
            self._runtime = library.Runtime(library.Logger(library.Logger.ERROR))
            self._engine = self._runtime.deserialize_cuda_engine(plan)
            if self._engine is None:
                raise ArtifactError(f"{path}: TensorRT {library.__version__} cannot load the plan in {cache}")
            work_space = self._work_space(len(shapes))
            gpu.memory.hold(self, self.name, work_space)
            self._memory = self._torch.empty(work_space, dtype=self._torch.uint8, device=self._device)
            calls = [self._call(library, profile, bucket) for profile, bucket in enumerate(shapes)]
            capture_all(self._torch, self._device, calls)
        keys = [tuple(bucket[name] for name in self.inputs) for bucket in shapes]
        self._calls = dict(zip(keys, calls, strict=True))

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name.

        Raises:
            MismatchError: The names of ``inputs`` are not exactly those of the graph, or no bucket has these shapes.
        """
        if inputs.keys() != set(self.inputs):
            raise MismatchError(f"{self._path}: takes inputs {sorted(self.inputs)}, got {sorted(inputs)}")
        for spec in self.input_specs:
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

    def _work_space(self, profiles: int) -> int:
        """Bytes for activations of the profile that needs most."""
        return max(1, *(self._engine.get_device_memory_size_for_profile_v2(profile) for profile in range(profiles)))

    def _call(self, library: Any, profile: int, bucket: Shapes) -> DeviceCall:
        return DeviceCall(
            self._torch,
            self._device,
            inputs=self.input_specs,
            shapes=bucket,
            outputs=self.output_specs,
            forward=self._forward(library, profile, bucket),
        )

    def _forward(self, library: Any, profile: int, bucket: Shapes) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """The engine at one profile, in a context and with outputs of its own."""
        torch, device, path = self._torch, self._device, self._path  # not self: calls would keep their engine alive
        context = self._engine.create_execution_context(library.ExecutionContextAllocationStrategy.USER_MANAGED)
        context.set_device_memory(self._memory.data_ptr(), self._memory.numel())
        stream = torch.cuda.current_stream(device)
        context.set_optimization_profile_async(profile, stream.cuda_stream)
        stream.synchronize()
        for name, shape in bucket.items():
            context.set_input_shape(name, shape)
        outputs = [
            torch.empty(tuple(context.get_tensor_shape(spec.name)), dtype=getattr(torch, spec.dtype), device=device)
            for spec in self.output_specs
        ]

        names = (*self.inputs, *self.outputs)

        def forward(inputs: Sequence[Any]) -> Sequence[Any]:
            for name, tensor in zip(names, (*inputs, *outputs), strict=True):
                context.set_tensor_address(name, tensor.data_ptr())
            if not context.execute_async_v3(torch.cuda.current_stream(device).cuda_stream):
                raise ArtifactError(f"{path}: TensorRT failed to run the graph at shapes {dict(bucket)}")
            return outputs

        return forward
