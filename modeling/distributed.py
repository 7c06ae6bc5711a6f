"""The processes of one training run under torchrun: which one this is, what it works on, and how they agree.

Every process runs the same code on its share of each batch. Exchanges are collective: all processes take part in the
same ones in the same order, so nothing here may be called by one process alone.
"""

import gc
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from contracts.errors import AdsieveError, ConfigError

LONGEST_WAIT = timedelta(days=1)
"""How long a process waits for another, such as for the one that encodes the log. One that dies is noticed at once."""

_MEETING_TIME, _WATCH_INTERVAL_S = timedelta(minutes=5), 0.5
_FAILURES = "adsieve/failures"
_EXIT_CODE = "adsieve/exit_code"


@dataclass(frozen=True)
class Ranks:
    """One process among those of a run; by default the only one, for which every exchange costs nothing.

    Args:
        rank: Of this process, from 0.
        size: Processes in all.
        device: Where this process computes.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, the same bits in each."""
        if self.alone:
            return values
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def from_main(self, value: float) -> float:
        """The main process's value of a number."""
        if self.alone:
            return value
        told = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(told, src=0)
        return float(told)

    def gather(self, values: Tensor) -> list[Tensor]:
        """The tensors of all processes in their order; equal in shape and type."""
        if self.alone:
            return [values]
        found = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(found, values)
        return found

    def wait(self) -> None:
        """Go on when all processes have come here."""
        if not self.alone:
            dist.barrier()

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run a block in the main process, then in the others, which find the files that it has written."""
        if not self.is_main:
            self.wait()
        yield
        if self.is_main:
            self.wait()

    def share(self, request_row: np.ndarray) -> slice:
        """This process's part of a batch: whole requests, about as many pairs as each other process has.

        Args:
            request_row: int [N], the request of each pair; the pairs of one stand together.

        Example:
            >>> requests = np.array([5, 5, 5, 2, 9, 9])
            >>> [Ranks(rank=rank, size=2).share(requests) for rank in range(2)]
            [slice(0, 3, None), slice(3, 6, None)]
        """
        starts = np.append(np.flatnonzero(np.diff(request_row, prepend=-1)), len(request_row))
        wanted = np.array([self.rank, self.rank + 1]) * len(request_row) // self.size
        first, last = starts[np.searchsorted(starts, wanted)]
        return slice(int(first), int(last))

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace each gradient by its sum over all processes, in one exchange.

        A parameter that no process used keeps having no gradient.
        """
        if self.alone:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        used = torch.tensor([p.grad is not None for p in parameters]).to(gradients[0])
        summed = self.sum(torch.cat([used, *(gradient.flatten() for gradient in gradients)]))
        used, *parts = summed.split([len(parameters), *(parameter.numel() for parameter in parameters)])
        for parameter, part, users in zip(parameters, parts, used.tolist(), strict=True):
            parameter.grad = part.view_as(parameter) if users else None

    def check_equal(self, tensors: Mapping[str, Tensor], what: str) -> None:
        """Compare a hash of some tensors over all processes.

        Raises:
            AdsieveError: They differ; says in which process.
        """
        if self.alone:
            return
        digest = hashlib.sha256()
        for name in sorted(tensors):
            digest.update(name.encode())
            digest.update(tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        found = self.gather(torch.tensor(list(digest.digest()), dtype=torch.uint8))
        others = [str(rank) for rank, hashed in enumerate(found) if not torch.equal(hashed, found[0])]
        if others:
            raise AdsieveError(f"{what} of process {', '.join(others)} differ from those of process 0")


ALONE = Ranks()


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Meet the processes that torchrun has started, for the length of a block; without torchrun this one is alone.

    They exchange through gloo on CPUs, and through NCCL where there are GPUs, one for each process. An error in one
    process ends the others, and is told by the first that has it.

    Raises:
        ConfigError: There are GPUs, but fewer than processes on this machine.
        AdsieveError: Another process has gone.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    left = threading.Event()
    watch = threading.Thread(target=_end_with, args=(os.getppid(), left), daemon=True, name="torchrun-watch")
    watch.start()
    device = _device(int(os.environ.get("LOCAL_RANK", "0")))
    whole_store, rank, size = next(dist.rendezvous("env://", timeout=_MEETING_TIME))
    # torchrun's restarts share one store: addresses of processes that are gone would be called
    store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", whole_store)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=LONGEST_WAIT)
        yield Ranks(rank, size, device)
    except Exception as error:
        _tell_once(error, store)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        # What is left of the group goes now, and its threads with it: one that still held a tensor when the
        # interpreter ends would abort the process after all its work was done.
        gc.collect()
        left.set()
        watch.join()


def _end_with(parent: int, left: threading.Event) -> None:
    """End this process when torchrun has gone: left behind, it would write into a run that was started again."""
    while not left.wait(_WATCH_INTERVAL_S):
        if os.getppid() != parent:
            os._exit(AdsieveError.exit_code)


def _device(local_rank: int) -> torch.device:
    """A GPU of its own for each process where there are any, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"torchrun: expected at most one process a GPU, {torch.cuda.device_count()} here, got --nproc-per-node of "
            f"{local_rank + 1} or more; CUDA_VISIBLE_DEVICES= trains on CPUs"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _tell_once(error: Exception, store: dist.Store) -> None:
    """Let the error of the first process that fails out, and end the others without a word and with its exit code.

    torchrun shows the exit code of the process that it saw end first, which may be one that only lost the first.
    """
    code = error.exit_code if isinstance(error, AdsieveError) else AdsieveError.exit_code
    try:
        first = store.add(_FAILURES, 1) == 1
        if first:
            store.set(_EXIT_CODE, str(code))
        elif store.check([_EXIT_CODE]):
            code = int(store.get(_EXIT_CODE))
    except dist.DistError:
        first = False  # the store has gone with the process that kept it
    if not first:
        raise SystemExit(code) from None
    if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
        raise AdsieveError(
            "another process of this run has ended; the same command goes on from the newest checkpoint"
        ) from error
