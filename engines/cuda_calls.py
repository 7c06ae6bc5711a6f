"""One call on a device: inputs across in one copy, a function of them, outputs back in one; captured, a CUDA graph.

Not yet run on a GPU but for what runs on a CPU too: there, nothing is pinned, copied or captured.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from contracts.errors import AdsieveError
from engines.packing import Packing
from engines.tensor_spec import TensorSpec

Shapes = Mapping[str, tuple[int, ...]]
WARM_UP_CALLS = 2
"""Libraries choose algorithms and allocate workspaces on first calls, which a capture must not record."""


class DeviceCall:
    """Buffers for inputs of fixed shapes and a function of them. One call at a time.

    Args:
        torch: The module.
        device: ``torch.device``.
        inputs: The function's inputs.
        shapes: Of each input.
        outputs: The function's outputs.
        forward: Device tensors in, device tensors out, on the current stream.
    """

    def __init__(
        self,
        torch: Any,
        device: Any,
        *,
        inputs: Sequence[TensorSpec],
        shapes: Shapes,
        outputs: Sequence[TensorSpec],
        forward: Callable[[Sequence[Any]], Sequence[Any]],
    ) -> None:
        self._torch, self._device, self._forward, self._outputs = torch, device, forward, outputs
        self._packing = Packing({spec.name: (spec.numpy_dtype, shapes[spec.name]) for spec in inputs})
        self._host = self._pinned(self._packing.nbytes)
        self._there = self._host if device.type == "cpu" else torch.empty_like(self._host, device=device)
        self._inputs = _tensors(torch, self._there, self._packing, inputs)
        self._graph: Any = None

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name, as copies."""
        self._packing.write(arrays, self._host.numpy())
        if self._graph is None:
            self._copy_in()
            packing, packed = self._packed(self._forward(self._inputs))
            return packing.read(packed.cpu().numpy())
        with self._torch.cuda.stream(self._stream):
            self._copy_in()
            self._graph.replay()
            self._back.copy_(self._results, non_blocking=True)
            self._stream.synchronize()
        return self._result_packing.read(self._back.numpy())

    def capture(self, pool: Any, stream: Any) -> None:
        """Record the function, and the packing of its outputs, as one CUDA graph; the inputs are zeros meanwhile.

        Args:
            pool: ``torch.cuda.graph_pool_handle()``, one for all calls that never run at the same time.
            stream: Captures and replays run on it.
        """
        torch = self._torch
        self._there.zero_()
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                self._result_packing, self._results = self._packed(self._forward(self._inputs))
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._packed(self._forward(self._inputs), into=self._results)
        self._back = self._pinned(self._result_packing.nbytes)
        self._graph, self._stream = graph, stream

    def _pinned(self, nbytes: int) -> Any:
        return self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=self._device.type == "cuda")

    def _copy_in(self) -> None:
        if self._there is not self._host:
            self._there.copy_(self._host, non_blocking=True)

    def _packed(self, outputs: Sequence[Any], into: Any = None) -> tuple[Packing, Any]:
        """Outputs side by side in one tensor of bytes, a new one unless ``into`` is given."""
        torch, specs = self._torch, self._outputs
        packing = Packing(
            {spec.name: (spec.numpy_dtype, tuple(output.shape)) for spec, output in zip(specs, outputs, strict=True)}
        )
        packed = torch.empty(packing.nbytes, dtype=torch.uint8, device=self._device) if into is None else into
        for place, output in zip(_tensors(torch, packed, packing, specs), outputs, strict=True):
            place.copy_(output)
        return packing, packed


def capture_all(torch: Any, device: Any, calls: Sequence[DeviceCall]) -> None:
    """Capture calls that share a stream and a pool of memory; with the largest first, the others fit in it."""
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
    for call in calls:
        call.capture(pool, stream)


def buffer_bytes(inputs: Sequence[TensorSpec], shapes: Sequence[Shapes]) -> int:
    """Bytes on the device for the inputs of calls of these shapes."""
    return sum(
        Packing({spec.name: (spec.numpy_dtype, bucket[spec.name]) for spec in inputs}).nbytes for bucket in shapes
    )


def check_device(torch: Any, device: str, *, engine: str) -> None:
    """Refuse a CUDA device that is not there.

    Raises:
        AdsieveError: Naming torch's version, what it is built for and how many devices it sees.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise AdsieveError(
            f"{engine} needs a CUDA device: torch {torch.__version__}, built for CUDA {torch.version.cuda}, "
            f"sees {torch.cuda.device_count()}"
        )


def _tensors(torch: Any, buffer: Any, packing: Packing, specs: Sequence[TensorSpec]) -> list[Any]:
    """Tensors that lie in ``buffer`` where ``packing`` puts them."""
    return [
        buffer[part.offset : part.offset + part.nbytes].view(getattr(torch, spec.dtype)).view(part.shape)
        for part, spec in zip(packing.parts, specs, strict=True)
    ]
