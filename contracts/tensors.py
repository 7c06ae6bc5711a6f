"""Arrays of a safetensors file, memory-mapped so that processes share one copy.

Source: the safetensors format: 8 bytes little-endian header length, a JSON header of dtype, shape and byte offsets,
then the data.
"""

from pathlib import Path

import msgspec
import numpy as np

from contracts.errors import ArtifactError

_DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_LENGTH_BYTES = 8


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Map every tensor of a safetensors file, read-only.

    Raises:
        ArtifactError: The file is truncated, malformed, or holds a type that NumPy lacks (such as BF16).
    """
    path = Path(path)
    size = path.stat().st_size
    if size < _LENGTH_BYTES:
        raise ArtifactError(f"{path}: truncated, {size} bytes are too few for a safetensors header")
    data = np.memmap(path, mode="r", dtype=np.uint8)
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    start = _LENGTH_BYTES + length
    if start > size:
        raise ArtifactError(f"{path}: truncated, the header of {length} bytes does not fit into {size} bytes")
    try:
        header = msgspec.json.decode(data[_LENGTH_BYTES:start].tobytes(), type=dict[str, dict])
        header.pop("__metadata__", None)
        entries = msgspec.convert(header, dict[str, _Entry])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: malformed safetensors header: {error}") from error
    return {name: _view(path, name, entry, data, start) for name, entry in entries.items()}


def _view(path: Path, name: str, entry: _Entry, data: np.ndarray, start: int) -> np.ndarray:
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None:
        raise ArtifactError(f"{path}: tensor {name} has type {entry.dtype}, expected one of {sorted(_DTYPES)}")
    first, last = (start + offset for offset in entry.data_offsets)
    expected = int(np.prod(entry.shape, dtype=np.int64)) * dtype.itemsize
    if not start <= first <= last <= len(data) or last - first != expected:
        raise ArtifactError(f"{path}: tensor {name} is truncated, bytes {first}..{last} of {len(data)}")
    view = np.ndarray(entry.shape, dtype=dtype, buffer=data, offset=first)
    view.flags.writeable = False
    return view
