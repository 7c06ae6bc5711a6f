"""A group of ads on a GPU: its vectors stay there and FAISS searches them there. Not yet run on a GPU.

Needs ``faiss-gpu`` in place of ``faiss-cpu`` (they share one folder, never install both). A filter that leaves few ads
is searched on the CPU, from the mapped file: FAISS on a GPU selects no ids.
"""

import threading

import faiss
import numpy as np

MOST_FETCHED = 2048
"""More than this FAISS on a GPU does not return."""
WORK_SPACE_BYTES = 256 << 20
"""Of the device, for one index while it is searched; FAISS's own default is 1.5 GiB."""


def has_gpu() -> bool:
    """Whether this process has a FAISS that sees a GPU."""
    return faiss.get_num_gpus() > 0


class GpuSearch:
    """A copy of an index on the first GPU, searched by one thread at a time: they would share FAISS's memory there."""

    def __init__(self, index: faiss.Index) -> None:
        self._resources = faiss.StandardGpuResources()  # has to outlive the index
        self._resources.setTempMemory(WORK_SPACE_BYTES)
        self._index = faiss.index_cpu_to_gpu(self._resources, 0, index)
        self._has_lists = isinstance(index, faiss.IndexIVF)
        self._lock = threading.Lock()

    def __call__(self, asked: np.ndarray, k: int, num_probes: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Scores and ids, [1, k] each; None where the GPU cannot fetch or look into so many."""
        if max(k, num_probes) > MOST_FETCHED:
            return None
        parameters = None
        if self._has_lists:
            parameters = faiss.SearchParametersIVF(nprobe=num_probes)  # type: ignore[call-arg]
        with self._lock:
            return self._index.search(asked, k, params=parameters)
