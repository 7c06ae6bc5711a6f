"""Embedding rows divided over the processes of a run, behind TorchRec's DistributedModelParallel.

Row ``r`` of the stacked matrix of a width belongs to process ``r % W`` as its row ``r // W``: every process holds the
same number of rows and, since ids are spread by hash or by first sight, about the same number of look-ups, whatever the
sizes of the logical tables are. For TorchRec each process's part is one table, placed on it (table-wise).

Shapes: W processes, D width of a table, U distinct rows that one process asks for.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from modeling.distributed import Ranks


class ShardedRows:
    """The rows of all widths, each with its process, and the row-wise Adagrad that trains it there.

    A process asks for each distinct row once, however many bags hold it, and pools what it gets; in the backward pass
    the owner gets one gradient a row and process, and sums them. That sum is the gradient of the whole batch: the
    division by the number of processes that TorchRec does by default is turned off, since losses are shares of a mean
    over the whole batch.

    Args:
        rows_per_dim: Rows of each width.
        ranks: The processes.
        learning_rate: Of row-wise Adagrad.
        epsilon: Added to the root of the accumulated square.
    """

    def __init__(self, rows_per_dim: Mapping[int, int], ranks: Ranks, learning_rate: float, epsilon: float) -> None:
        set_gradient_division(False)
        self._rows_per_dim, self._ranks = dict(rows_per_dim), ranks
        self._model = _distribute(self._rows_per_dim, ranks, {"lr": learning_rate, "eps": epsilon})
        weights = self._model.state_dict()
        states = self._model.fused_optimizer.state_dict()["state"]
        self._weights: dict[int, Tensor] = {}
        self._accumulated: dict[int, Tensor] = {}
        for dim in self._rows_per_dim:
            name = f"dim{dim}.embedding_bags.{_part(dim, ranks.rank)}.weight"
            self._weights[dim] = weights[name].local_shards()[0].tensor.detach()
            (accumulated,) = states[name].values()
            self._accumulated[dim] = accumulated.local_shards()[0].tensor.view(-1)

    def look_up(self, dim: int, rows: Tensor, lengths: Tensor) -> Tensor:
        """The mean of each bag [bags, D]; ``rows`` of the stacked matrix, bag by bag. Collective."""
        size = self._ranks.size
        distinct, inverse = rows.long().unique(return_inverse=True)
        owner = distinct % size
        order = owner.argsort(stable=True)
        counts = torch.bincount(owner, minlength=size)
        # every owner is asked for the same number of bags, the last of which is empty everywhere: it gives zeros
        depth = int(counts.max()) + 1
        asked = torch.arange(depth, device=rows.device) < counts[:, None]  # [W, depth]
        bags = KeyedJaggedTensor(
            keys=[_part(dim, rank) for rank in range(size)],
            values=(distinct // size)[order],
            lengths=asked.flatten().int(),
        )
        found = self._model.module[f"dim{dim}"](bags).values().view(depth * size, dim)
        within = torch.arange(len(order), device=rows.device) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        places = torch.empty_like(order)
        places[order] = within * size + owner[order]
        return _pool(found, places[inverse], lengths, empty=(depth - 1) * size)

    def write(self, dim: int, first: int, *, weights: Tensor | None = None, accumulated: Tensor | None = None) -> None:
        """Overwrite rows of the stacked matrix from ``first`` on: weights [n, D], accumulated squares [n].

        Every process is given all of them and keeps its own.
        """
        size = self._ranks.size
        skipped = (self._ranks.rank - first) % size
        begin = (first + skipped) // size
        for held, values in ((self._weights[dim], weights), (self._accumulated[dim], accumulated)):
            if values is not None:
                mine = values[skipped::size]
                held[begin : begin + len(mine)].copy_(mine)

    def weights(self, dim: int) -> Tensor | None:
        """The stacked matrix [rows, D] on the CPU of the main process, None elsewhere. Collective."""
        return self._gather(self._weights[dim], self._rows_per_dim[dim])

    def accumulated(self, dim: int) -> Tensor | None:
        """The accumulated squares [rows] on the CPU of the main process, None elsewhere. Collective."""
        return self._gather(self._accumulated[dim], self._rows_per_dim[dim])

    def set_learning_rate(self, learning_rate: float) -> None:
        """From the next backward pass on."""
        optimizer = self._model.fused_optimizer
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()

    def _gather(self, mine: Tensor, rows: int) -> Tensor | None:
        size = self._ranks.size
        part = mine.new_zeros(-(-rows // size), *mine.shape[1:])
        part[: len(mine)] = mine
        parts = [torch.empty_like(part) for _ in range(size)] if self._ranks.is_main else None
        dist.gather(part, parts, dst=0)
        return None if parts is None else torch.stack(parts, dim=1).flatten(0, 1)[:rows].cpu()


def _distribute(rows_per_dim: Mapping[int, int], ranks: Ranks, optimizer: dict[str, float]) -> DistributedModelParallel:
    collections = {
        f"dim{dim}": EmbeddingBagCollection(
            tables=[_config(dim, rank, rows, ranks.size) for rank in range(ranks.size)], device=torch.device("meta")
        )
        for dim, rows in rows_per_dim.items()
    }
    sharder = EmbeddingBagCollectionSharder()
    plans = {}
    for name, collection in collections.items():
        apply_optimizer_in_backward(RowWiseAdagrad, collection.parameters(), optimizer)
        places = {config.name: table_wise(rank) for rank, config in enumerate(collection.embedding_bag_configs())}
        plans[name] = construct_module_sharding_plan(
            collection, places, sharder, world_size=ranks.size, device_type=ranks.device.type
        )
    return DistributedModelParallel(
        nn.ModuleDict(collections),
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=ranks.device,
        plan=ShardingPlan(plans),
        sharders=[sharder],
        init_data_parallel=False,
    )


def _config(dim: int, rank: int, rows: int, size: int) -> EmbeddingBagConfig:
    part = _part(dim, rank)
    return EmbeddingBagConfig(
        name=part,
        embedding_dim=dim,
        num_embeddings=max(1, -(-(rows - rank) // size)),
        feature_names=[part],
        pooling=PoolingType.SUM,  # of one row a bag: it is pooled where it is asked for
    )


def _part(dim: int, rank: int) -> str:
    return f"dim{dim}_{rank}"


def _pool(found: Tensor, places: Tensor, lengths: Tensor, *, empty: int) -> Tensor:
    """The mean of each bag over rows of ``found`` at ``places``, bag by bag; ``empty`` is a row of zeros."""
    if not len(lengths) or int(lengths.max()) <= 1:
        # its backward pass costs half of that of a pooling look-up
        filled = torch.full_like(lengths, empty, dtype=torch.int64)
        filled[lengths.bool()] = places
        return found.index_select(0, filled)
    offsets = functional.pad(lengths.long().cumsum(0), (1, 0))
    return functional.embedding_bag(places, found, offsets, mode="mean", include_last_offset=True)
