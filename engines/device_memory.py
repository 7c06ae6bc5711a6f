"""What a process may put on its GPU: every engine, matrix and search index takes its share of one stated budget.

A share is held by the object that fills it and goes back when that object does. While a release is exchanged for
another, both are there and both are counted. Sizes are what is known before anything is put on the device: weights,
vectors, buffers and work space; the driver's own memory (some 500 MiB a process) is not counted.
"""

import threading
import weakref

from engines.protocol import EngineNotNowError

MIB = 1 << 20


class DeviceMemoryError(EngineNotNowError):
    """There is no room left on the device for something; a processor can do its work."""


class DeviceMemory:
    """The budget of one process on one device, and who holds how much of it. May be used by several threads.

    Args:
        limit_bytes: Most that may be held; None is no limit.

    Example:
        >>> class Matrix: pass
        >>> memory, matrix = DeviceMemory(100), Matrix()
        >>> memory.hold(matrix, "vectors", 80)
        >>> memory.held()
        {'vectors': 80}
        >>> memory.hold(Matrix(), "an engine", 30)
        Traceback (most recent call last):
            ...
        engines.device_memory.DeviceMemoryError: an engine needs 1 MiB of the device, 1 MiB of 1 MiB are held (vectors)
        >>> del matrix
        >>> memory.held()
        {}
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._shares: dict[int, tuple[str, int]] = {}
        self._lock, self._next = threading.RLock(), 0

    def check(self, what: str, nbytes: int) -> None:
        """Refuse what does not fit into the budget.

        Raises:
            DeviceMemoryError: It needs more than is left.
        """
        used = self.used_bytes
        if self.limit_bytes is not None and used + nbytes > self.limit_bytes:
            raise DeviceMemoryError(
                f"{what} needs {_mib(nbytes)} of the device, {_mib(used)} of {_mib(self.limit_bytes)} are held"
                + (f" ({', '.join(sorted(self.held()))})" if self._shares else "")
            )

    def hold(self, owner: object, what: str, nbytes: int) -> None:
        """Count bytes for as long as ``owner`` lives; an owner may hold several shares.

        Args:
            what: Such as ``vectors`` or ``torch_cuda``; what metrics call it.

        Raises:
            DeviceMemoryError: They do not fit into the budget.
        """
        with self._lock:
            self.check(what, nbytes)
            key, self._next = self._next, self._next + 1
            self._shares[key] = what, nbytes
        weakref.finalize(owner, self._shares.pop, key, None)

    @property
    def used_bytes(self) -> int:
        """What all hold together."""
        return sum(nbytes for _, nbytes in list(self._shares.values()))

    def held(self) -> dict[str, int]:
        """Bytes by what they are held for."""
        held: dict[str, int] = {}
        for what, nbytes in list(self._shares.values()):
            held[what] = held.get(what, 0) + nbytes
        return held


def _mib(nbytes: int) -> str:
    return f"{-(-nbytes // MIB):,} MiB"
