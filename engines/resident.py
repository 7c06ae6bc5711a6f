"""Ads' vectors that stay on a device: gathered, scored, masked and sorted out there, one copy in and one out.

For each ad and head ``logit = scale * (vector . q[:D]) + bias * q[D] + q[D+1]`` in fp32, and ``utility = bid * p`` in
fp64, p being the sigmoid of the logit that the ad's objective pays for, or 1. What a request brings is rows, bids,
heads and its embedding; what it gets is the best K, or all logits. Equal utilities stand in the order in which they
came: a threshold by top-k, then positions by running counts, since a device's top-k keeps no order among equals.

Runs in the tests on a CPU through the same calls; captures, pinned copies and speed have **not yet been run on a GPU**.

Shapes: A rows, P rows of a request, K survivors, H heads, D width of a head's vector.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from contracts.errors import MismatchError
from engines.buckets import bucket_for
from engines.cuda_calls import DeviceCall, capture_all, check_device
from engines.gpu import Gpu
from engines.tensor_spec import TensorSpec
from engines.torch_program import import_torch

ROW_BUCKETS = (1_024, 4_096, 16_384, 65_536, 131_072)
SURVIVOR_BUCKETS = (128, 1_024)
UPLOAD_BYTES = 32 << 20
"""Of a piece in which vectors are brought to the device."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The K ads of largest utility, best first.

    ``positions`` int64 [K] are places among the rows asked, ``utilities`` float64 [K], ``logits`` float32 [K, H].
    """

    positions: np.ndarray
    utilities: np.ndarray
    logits: np.ndarray


class ResidentPins:
    """Vectors, biases and scales of an index on one device, with room for rows that come later.

    Safe to call from several threads: a device runs one call at a time.

    Args:
        vectors: [A, H * D], fp32, fp16 or int8, mapped or not; brought over in pieces, in the type that they have.
        bias: fp32 [A, H].
        scales: fp32 [A, H] of int8 vectors, else None.
        spare: Rows that may be appended.
        row_buckets: Numbers of rows that calls are padded to; more are refused.
        survivor_buckets: Numbers of survivors, likewise.
        gpu: The device and its budget; the device ``cpu`` runs the same calls without graphs.

    Raises:
        AdsieveError: torch is not installed, or has no such device.
        DeviceMemoryError: It does not fit into the budget.

    Example:
        >>> vectors, bias = np.array([[1, 0], [0, 1], [1, 0]], np.float16), np.zeros((3, 1), np.float32)
        >>> pins = ResidentPins(vectors, bias, None, spare=1, gpu=Gpu(device="cpu"))
        >>> query = np.array([[1, 2, 0, 0]], np.float32)
        >>> pins.logits(np.array([1, 0]), query).tolist()
        [[2.0], [1.0]]
        >>> pins.best(np.array([0, 1, 2]), np.zeros(3), np.array([2.0, 0.0, 2.0]), query, k=2).positions.tolist()
        [0, 2]
    """

    def __init__(
        self,
        vectors: np.ndarray,
        bias: np.ndarray,
        scales: np.ndarray | None,
        *,
        spare: int = 0,
        row_buckets: Sequence[int] = ROW_BUCKETS,
        survivor_buckets: Sequence[int] = SURVIVOR_BUCKETS,
        gpu: Gpu | None = None,
    ) -> None:
        self._torch, gpu = import_torch(), gpu or Gpu()
        torch = self._torch
        check_device(torch, gpu.device, engine="a resident index")
        self._device, self._lock = torch.device(gpu.device), threading.Lock()
        self._num_heads, self._width = bias.shape[1], vectors.shape[1]
        self._row_buckets, self._survivor_buckets = tuple(row_buckets), tuple(survivor_buckets)
        capacity = len(vectors) + spare
        gpu.memory.hold(self, "vectors", self._bytes(capacity, vectors.dtype.itemsize, scales is not None))
        with self._on_device(), torch.inference_mode():
            self._columns = {
                name: torch.zeros((capacity, array.shape[1]), dtype=getattr(torch, str(array.dtype)), device=gpu.device)
                for name, array in _given(vectors, bias, scales).items()
            }
            self._num_rows = 0
            self.append(vectors, bias, scales)
            self._calls = {key: self._call(*key) for key in self._keys()}
            if self._device.type == "cuda":
                capture_all(torch, self._device, list(self._calls.values()))

    @property
    def room(self) -> int:
        """Rows that may still be appended."""
        return len(self._columns["bias"]) - self._num_rows

    @property
    def most_rows(self) -> int:
        """Rows that one call may ask for."""
        return self._row_buckets[-1]

    @property
    def most_survivors(self) -> int:
        """Survivors that one call may ask for."""
        return self._survivor_buckets[-1]

    def append(self, vectors: np.ndarray, bias: np.ndarray, scales: np.ndarray | None) -> int:
        """Bring further rows over; returns the place of the first.

        Raises:
            MismatchError: There is no room for them.
        """
        given = _given(vectors, bias, scales)
        with self._lock, self._on_device(), self._torch.inference_mode():
            first, count = self._num_rows, len(bias)
            if count > self.room:
                raise MismatchError(f"{count} rows do not fit beside {first}, room is for {self.room}")
            for name, column in self._columns.items():
                self._upload(given[name], column[first : first + count])
            self._num_rows = first + count
        return first

    def logits(self, places: np.ndarray, query: np.ndarray, *, absent: np.ndarray | None = None) -> np.ndarray:
        """Logits of all rows asked, float32 [P, H].

        Args:
            places: Rows [P], at most :attr:`most_rows`; -1 for an ad that is no row.
            query: float32 [H, D+2], finite.
            absent: Logits of ads that are no rows, float32 [H]; given where there are any.
        """
        rows = bucket_for(len(places), self._row_buckets)
        found = self._run((rows, 0), self._asked(places, query, absent, rows))
        return found["logits"][: len(places)]

    def best(
        self,
        places: np.ndarray,
        heads: np.ndarray,
        bids: np.ndarray,
        query: np.ndarray,
        *,
        k: int,
        absent: np.ndarray | None = None,
    ) -> Best:
        """The ``k`` rows of largest utility, or all where there are fewer.

        Args:
            places, query, absent: As :meth:`logits` takes them.
            heads: The head that each row's objective pays for, H for the impression [P].
            bids: [P], finite.
            k: At most :attr:`most_survivors`.
        """
        rows = bucket_for(len(places), self._row_buckets)
        survivors = min(bucket_for(k, self._survivor_buckets), rows)
        inputs = self._asked(places, query, absent, rows) | {
            "heads": _padded(heads, rows, np.int8),
            "bids": _padded(bids, rows, np.float64),
            "keep": _padded(np.ones(len(places), bool), rows, np.bool_),
        }
        found, kept = self._run((rows, survivors), inputs), min(k, len(places))
        return Best(
            positions=found["positions"][:kept], utilities=found["utilities"][:kept], logits=found["logits"][:kept]
        )

    def _asked(
        self, places: np.ndarray, query: np.ndarray, absent: np.ndarray | None, rows: int
    ) -> dict[str, np.ndarray]:
        nothing = np.zeros(self._num_heads, np.float32)
        padded = _padded(places, rows, np.int32)
        return {"rows": padded, "query": query, "absent": nothing if absent is None else absent}

    def _run(self, key: tuple[int, int], inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with self._lock, self._on_device(), self._torch.inference_mode():
            return self._calls[key].run(inputs)

    def _keys(self) -> list[tuple[int, int]]:
        """Rows and survivors of every call, the largest first; no survivors are those that give all logits."""
        keys = {(rows, min(most, rows)) for rows in self._row_buckets for most in (0, *self._survivor_buckets)}
        return sorted(keys, reverse=True)

    def _call(self, rows: int, survivors: int) -> DeviceCall:
        heads, head_dim = self._num_heads, self._width // self._num_heads
        inputs = [
            TensorSpec(name="rows", dtype="int32", shape=[rows]),
            TensorSpec(name="query", dtype="float32", shape=[heads, head_dim + 2]),
            TensorSpec(name="absent", dtype="float32", shape=[heads]),
        ]
        outputs = [TensorSpec(name="logits", dtype="float32", shape=[survivors or rows, heads])]
        if survivors:
            inputs += [
                TensorSpec(name="heads", dtype="int8", shape=[rows]),
                TensorSpec(name="bids", dtype="float64", shape=[rows]),
                TensorSpec(name="keep", dtype="bool", shape=[rows]),
            ]
            outputs += [
                TensorSpec(name="positions", dtype="int64", shape=[survivors]),
                TensorSpec(name="utilities", dtype="float64", shape=[survivors]),
            ]
        return DeviceCall(
            self._torch,
            self._device,
            inputs=inputs,
            shapes={spec.name: tuple(int(size) for size in spec.shape) for spec in inputs},
            outputs=outputs,
            forward=partial(_best, self._torch, self._columns, survivors)
            if survivors
            else partial(_logits, self._torch, self._columns),
        )

    def _upload(self, array: np.ndarray, place: Any) -> None:
        """Copy an array, which may be mapped and read-only, in pieces through one staging buffer."""
        torch = self._torch
        step = max(1, UPLOAD_BYTES // max(1, array[:1].nbytes))
        pinned = self._device.type == "cuda"
        staging = torch.empty((min(step, len(array)), array.shape[1]), dtype=place.dtype, pin_memory=pinned)
        for start in range(0, len(array), step):
            piece = array[start : start + step]
            staging.numpy()[: len(piece)] = piece
            place[start : start + len(piece)].copy_(staging[: len(piece)])  # waits, since the buffer is used again

    def _bytes(self, capacity: int, itemsize: int, has_scales: bool) -> int:
        """Of the columns, and of the work space of the largest call."""
        columns = capacity * (self._width * itemsize + 4 * self._num_heads * (2 if has_scales else 1))
        return columns + self._row_buckets[-1] * (self._width * (itemsize + 8) + 64 * (self._num_heads + 2))

    def _on_device(self) -> AbstractContextManager[Any]:
        return self._torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


def _logits(torch: Any, columns: Mapping[str, Any], inputs: Sequence[Any]) -> list[Any]:
    rows, query, absent = inputs[:3]
    at, head_dim = rows.clamp(min=0), query.shape[1] - 2
    vectors, bias = (columns[name].index_select(0, at) for name in ("vectors", "bias"))
    products = vectors.float().view(len(rows), len(query), head_dim) * query[:, :head_dim]
    logits = products.sum(2)  # a product and a sum are fp32, whatever matrix products are allowed to be
    if "scales" in columns:
        logits = logits * columns["scales"].index_select(0, at)
    logits = logits + bias * query[:, head_dim] + query[:, head_dim + 1]
    return [torch.where(rows[:, None] < 0, absent, logits)]


def _best(torch: Any, columns: Mapping[str, Any], survivors: int, inputs: Sequence[Any]) -> list[Any]:
    heads, bids, keep = inputs[3:]
    (logits,) = _logits(torch, columns, inputs)
    chances = torch.sigmoid(logits.double())
    paid = torch.cat([chances, torch.ones_like(chances[:, :1])], 1).gather(1, heads.long()[:, None])[:, 0]
    utilities = torch.where(keep, bids * paid, -torch.inf)
    positions = _top(torch, utilities, survivors)
    return [logits[positions], positions, utilities[positions]]


def _top(torch: Any, utilities: Any, k: int) -> Any:
    """Positions of the ``k`` largest, best first, equal ones in the order in which they stand; shapes are static."""
    threshold = torch.topk(utilities, k, sorted=False).values.min()
    above, level = utilities > threshold, utilities == threshold
    kept = above | (level & (level.cumsum(0) <= k - above.sum()))
    target = torch.where(kept, kept.cumsum(0) - 1, k)  # the last place takes what is left out
    every = torch.arange(len(utilities), device=utilities.device)
    positions = torch.zeros(k + 1, dtype=torch.int64, device=utilities.device).scatter_(0, target, every)[:k]
    return positions[torch.sort(utilities[positions], descending=True, stable=True).indices]


def _given(vectors: np.ndarray, bias: np.ndarray, scales: np.ndarray | None) -> dict[str, np.ndarray]:
    return {"vectors": vectors, "bias": bias} | ({} if scales is None else {"scales": scales})


def _padded(values: np.ndarray, size: int, dtype: Any) -> np.ndarray:
    padded = np.zeros(size, dtype)
    padded[: len(values)] = values
    return padded
