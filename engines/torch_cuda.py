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
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contracts.errors import AdsieveError, MismatchError
from engines.packing import Packing
from engines.torch_program import TensorSpec, TorchProgram, import_torch, numpy_dtype, read_program

Shapes = Mapping[str, tuple[int, ...]]
WARM_UP_CALLS = 2


class TorchCudaEngine:
    """One program on one device, safe to call from several threads: a device runs one call at a time.

    Args:
        path: A file that ``engines.torch_program_writer`` wrote.
        shapes: Shapes of all inputs for each bucket, as ``engines.buckets.bucket_shapes`` lists them; captured when the
            engine is made. Other shapes run operator by operator.
        precision: ``bf16`` runs matrix products in BF16 as ``torch.autocast`` does; outputs keep their type.
        device: ``cuda``, ``cuda:1``; ``cpu`` runs the same program without graphs.

    Raises:
        AdsieveError: torch is not installed, or has no such device.
        ArtifactError: The file is no program.
    """

    name = "torch_cuda"

    def __init__(
        self,
        path: Path,
        *,
        shapes: Sequence[Shapes] = (),
        precision: Literal["fp32", "bf16"] = "bf16",
        device: str = "cuda",
    ) -> None:
        if precision not in ("fp32", "bf16"):
            raise ValueError(f"precision must be 'fp32' or 'bf16', got {precision!r}")
        self._torch = import_torch()
        _check_device(self._torch, device)
        self._path, self._device, self._precision = path, self._torch.device(device), precision
        self._program = read_program(path, device=device)
        self.inputs = tuple(spec.name for spec in self._program.inputs)
        self.outputs = tuple(spec.name for spec in self._program.outputs)
        self._lock = threading.Lock()
        self._captured = self._capture_all(shapes) if self._device.type == "cuda" else {}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name.

        Raises:
            MismatchError: The names of ``inputs`` are not exactly those of the program, or an array has another type or
                shape than it takes.
        """
        if inputs.keys() != set(self.inputs):
            raise MismatchError(f"{self._path}: takes inputs {sorted(self.inputs)}, got {sorted(inputs)}")
        for spec in self._program.inputs:
            _check_array(self._path, spec, inputs[spec.name])
        key = tuple(inputs[name].shape for name in self.inputs)
        with self._lock, self._on_device(), self._torch.inference_mode():
            call = self._captured.get(key) or self._call(dict(zip(self.inputs, key, strict=True)))
            return call.run(inputs)

    def _call(self, shapes: Shapes) -> "_Call":
        return _Call(self._torch, self._program, shapes, self._device, self._precision)

    def _on_device(self) -> AbstractContextManager[Any]:
        return self._torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()

    def _capture_all(self, shapes: Sequence[Shapes]) -> dict[tuple[tuple[int, ...], ...], "_Call"]:
        torch = self._torch
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        captured = {}
        with self._on_device(), torch.inference_mode():
            for bucket in sorted(shapes, key=lambda bucket: -sum(map(np.prod, bucket.values()))):
                call = self._call(bucket)
                call.capture(pool, stream)
                captured[tuple(tuple(bucket[name]) for name in self.inputs)] = call
        return captured


class _Call:
    """Buffers for inputs of given shapes, the program on them, and, once captured, its CUDA graph."""

    def __init__(self, torch: Any, program: TorchProgram, shapes: Shapes, device: Any, precision: str) -> None:
        self._torch, self._program, self._device, self._precision = torch, program, device, precision
        self._packing = Packing({spec.name: (numpy_dtype(spec.dtype), shapes[spec.name]) for spec in program.inputs})
        self._host = self._pinned(self._packing.nbytes)
        self._there = self._host if device.type == "cpu" else torch.empty_like(self._host, device=device)
        self._inputs = [_part(torch, self._there, part.offset, spec, part.shape) for part, spec in self._parts()]
        self._graph: Any = None
        self._stream: Any = None

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self._packing.write(inputs, self._host.numpy())
        if self._graph is None:
            self._copy_in()
            outputs = self._packed(self._forward())
            return self._out.read(outputs.cpu().numpy())
        with self._torch.cuda.stream(self._stream):
            self._copy_in()
            self._graph.replay()
            self._back.copy_(self._results, non_blocking=True)
            self._stream.synchronize()
        return self._out.read(self._back.numpy())

    def capture(self, pool: Any, stream: Any) -> None:
        """Record the program and the packing of its outputs; inputs are zeros meanwhile."""
        torch = self._torch
        self._there.zero_()
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                self._results = self._packed(self._forward())
        stream.synchronize()
        self._back, graph = self._pinned(self._out.nbytes), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._packed(self._forward(), into=self._results)
        self._graph, self._stream = graph, stream

    def _parts(self) -> list[tuple[Any, TensorSpec]]:
        return list(zip(self._packing.parts, self._program.inputs, strict=True))

    def _pinned(self, nbytes: int) -> Any:
        return self._torch.empty(max(nbytes, 1), dtype=self._torch.uint8, pin_memory=self._device.type == "cuda")

    def _copy_in(self) -> None:
        if self._there is not self._host:
            self._there.copy_(self._host, non_blocking=True)

    def _forward(self) -> tuple[Any, ...]:
        with self._autocast():
            return self._program(*self._inputs)

    def _autocast(self) -> AbstractContextManager[Any]:
        """Without its cache of cast weights, whose memory would not belong to the graph that captures them."""
        torch = self._torch
        return torch.autocast(
            self._device.type, dtype=torch.bfloat16, enabled=self._precision == "bf16", cache_enabled=False
        )

    def _packed(self, outputs: Sequence[Any], into: Any = None) -> Any:
        """Outputs side by side in one tensor of bytes, a new one unless ``into`` is given."""
        torch, specs = self._torch, self._program.outputs
        self._out = Packing(
            {s.name: (numpy_dtype(s.dtype), tuple(o.shape)) for s, o in zip(specs, outputs, strict=True)}
        )
        if into is None:
            into = torch.empty(max(self._out.nbytes, 1), dtype=torch.uint8, device=self._device)
        for part, spec, output in zip(self._out.parts, specs, outputs, strict=True):
            _part(torch, into, part.offset, spec, part.shape).copy_(output)
        return into


def _part(torch: Any, buffer: Any, offset: int, spec: TensorSpec, shape: tuple[int, ...]) -> Any:
    """A tensor of ``shape`` that lies in ``buffer`` from ``offset`` on."""
    dtype = getattr(torch, spec.dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return buffer[offset : offset + nbytes].view(dtype).view(shape)


def _check_device(torch: Any, device: str) -> None:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise AdsieveError(
            f"torch_cuda needs a CUDA device: torch {torch.__version__}, built for CUDA {torch.version.cuda}, "
            f"sees {torch.cuda.device_count()}"
        )


def _check_array(path: Path, spec: TensorSpec, array: np.ndarray) -> None:
    fits = array.ndim == len(spec.shape) and all(
        wanted in (None, size) for wanted, size in zip(spec.shape, array.shape, strict=True)
    )
    if not fits or array.dtype != numpy_dtype(spec.dtype):
        wanted = ["any" if size is None else size for size in spec.shape]
        raise MismatchError(
            f"{path}: input {spec.name} takes {spec.dtype} {wanted}, got {array.dtype} {list(array.shape)}"
        )
