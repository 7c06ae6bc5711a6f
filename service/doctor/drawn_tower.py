"""A small query tower with drawn weights, as an ONNX file and as a formula: what engines are tried on.

Written as the protocol buffer that an ONNX file is, so that neither torch nor the onnx package is needed.
Source: github.com/onnx/onnx, ``onnx/onnx.proto``; each number below is that of a field there.

Shapes: B rows, D inputs, H hidden, E embedding.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

INPUT, OUTPUT = "flat", "embedding"
DIMS = (256, 128, 64)
ROWS, SEED = 64, 0
OPSET, IR_VERSION = 17, 8
_FLOAT = 1
_VARINT, _BYTES = 0, 2


def drawn_weights() -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights [D, H] and biases [H] of each layer, of the size that keeps activations near 1."""
    rng = np.random.default_rng(SEED)
    return [
        (
            rng.normal(0, np.sqrt(2 / width), (width, following)).astype(np.float32),
            rng.normal(0, 0.1, following).astype(np.float32),
        )
        for width, following in pairwise(DIMS)
    ]


def drawn_rows() -> dict[str, np.ndarray]:
    """``in.flat`` [B, D] and ``out.embedding`` [B, E], the latter by the formula in float64."""
    rows = np.random.default_rng(SEED + 1).normal(0, 1, (ROWS, DIMS[0])).astype(np.float32)
    return {f"in.{INPUT}": rows, f"out.{OUTPUT}": formula(rows)}


def formula(rows: np.ndarray) -> np.ndarray:
    """``tanh(W2 relu(W1 x + b1) + b2)``, in float64: float32 [B, D] to float32 [B, E]."""
    values, weights = rows.astype(np.float64), drawn_weights()
    for number, (weight, bias) in enumerate(weights):
        values = values @ weight + bias
        values = np.tanh(values) if number == len(weights) - 1 else np.maximum(values, 0)
    return values.astype(np.float32)


def write_drawn_tower(path: Path) -> Path:
    """Write the tower as an ONNX file with any number of rows."""
    weights = drawn_weights()
    parts, name = [], INPUT
    for number, (weight, bias) in enumerate(weights):
        last = number == len(weights) - 1
        parts.append(_tensor(f"w{number}", weight) + _tensor(f"b{number}", bias))
        parts.append(_node("Gemm", [name, f"w{number}", f"b{number}"], f"sum{number}"))
        name = OUTPUT if last else f"hidden{number}"
        parts.append(_node("Tanh" if last else "Relu", [f"sum{number}"], name))
    graph = _text(2, "drawn") + b"".join(parts)
    graph += _field(11, _value(INPUT, DIMS[0])) + _field(12, _value(OUTPUT, DIMS[-1]))
    opset = _field(8, _text(1, "") + _number(2, OPSET))
    path.write_bytes(_number(1, IR_VERSION) + _text(2, "adsieve") + _field(7, graph) + opset)
    return path


def _node(kind: str, inputs: Sequence[str], output: str) -> bytes:
    """GraphProto.node."""
    return _field(1, b"".join(_text(1, name) for name in inputs) + _text(2, output) + _text(4, kind))


def _tensor(name: str, values: np.ndarray) -> bytes:
    """GraphProto.initializer."""
    shape = b"".join(_number(1, size) for size in values.shape)
    return _field(5, shape + _number(2, _FLOAT) + _text(8, name) + _field(9, values.astype("<f4").tobytes()))


def _value(name: str, width: int) -> bytes:
    """A ValueInfoProto: float32 [rows, width], with as many rows as come."""
    shape = _field(1, _text(2, "rows")) + _field(1, _number(1, width))
    return _text(1, name) + _field(2, _field(1, _number(1, _FLOAT) + _field(2, shape)))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow.

    Example:
        >>> _varint(300)
        b'\\xac\\x02'
    """
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
