"""Embedding tables of a feature schema: one gather per width, mean pooling, a fused optimiser of their own.

Shapes: B rows of one side, D width of a table.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from contracts.errors import ConfigError, MismatchError
from contracts.layout import SideLayout, side_layout
from contracts.schema import FeatureSchema, Side
from modeling.distributed import Ranks
from modeling.lookups import Gather, SideInputs, SideRequest, Stack
from modeling.sharded_rows import ShardedRows

TableInit = Literal["dim", "rows"]


class FeatureTables(nn.Module):
    """All embedding tables that some sides of a schema use, with their look-ups and their optimiser.

    Tables of one width are stacked in one weight matrix behind one TorchRec ``FusedEmbeddingBagCollection``: a step
    does one gather per width, however many features it has, and a table that several features or sides share is one
    set of rows. Pooling is the mean over ids that are not padding; padding rows stay zero and never train.

    The optimiser is row-wise Adagrad, applied inside the backward pass to the rows that were looked up:
    ``m += mean(g ** 2); w -= learning_rate * g / (sqrt(m) + epsilon)`` with g a row's gradient. Under
    ``torch.no_grad`` nothing is updated. Weights start uniform in ``+-1 / sqrt(D)``, so that the length of a row
    does not depend on how many rows its table has.

    Between ``shard`` and ``unshard`` the rows are divided over the processes of a run, and what reads or writes them is
    collective; the tables then have no parameters here.

    Source: Duchi et al. 2011 (Adagrad), in the row-wise form of FBGEMM.

    Args:
        schema: A fitted schema.
        sides: Sides that the model reads, such as ``("query", "ad")``.
        pool_sequences: Mean-pool sequences into ``flat`` instead of keeping their events.
        learning_rate: Of the tables alone; dense layers have their own.
        epsilon: Added to the root of the accumulated square.
        init: What the weights' bound is the inverse root of; ``rows`` is TorchRec's default, for comparison.
        seed: Of the initial weights.
        device: Where the tables live; they are made there and do not move.

    Raises:
        ConfigError: A table's dim is not a multiple of 4.
    """

    def __init__(
        self,
        schema: FeatureSchema,
        sides: Iterable[Side],
        *,
        pool_sequences: bool,
        learning_rate: float,
        epsilon: float = 1e-8,
        init: TableInit = "dim",
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        # TorchRec's first look-up warns about a symbol of torch.fx that nobody here can act on
        logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
        self.layouts: dict[str, SideLayout] = {side: side_layout(schema, side) for side in sides}
        self.pool_sequences, self.learning_rate = pool_sequences, learning_rate
        self._epsilon, self._init, self._device = epsilon, init, torch.device(device)
        self.stack = Stack(schema.all_tables(), _tables_of(self.layouts.values()))
        _check_dims(self.stack)
        self.collections = self._whole_collections()
        self._sharded: ShardedRows | None = None
        self.reinitialise(self.stack.tables, seed=seed)

    def shard(self, ranks: Ranks) -> None:
        """Divide rows and optimiser state over the processes, which all hold the same, each on its device."""
        sharded = ShardedRows(self.stack.rows_per_dim, ranks, self.learning_rate, self._epsilon)
        for dim in self.stack.rows_per_dim:
            accumulated = _accumulated(self.collections[_key(dim)])
            sharded.write(dim, 0, weights=self._matrix(dim).detach(), accumulated=accumulated)
        self.collections, self._sharded = nn.ModuleDict(), sharded

    def unshard(self) -> None:
        """Hold all rows in this process again, with weights that the caller then loads from a checkpoint."""
        if self._sharded is not None:
            self.collections, self._sharded = self._whole_collections(), None

    def _whole_collections(self) -> nn.ModuleDict:
        return nn.ModuleDict(
            {
                _key(dim): _collection(dim, rows, self.learning_rate, self._epsilon, self._device)
                for dim, rows in self.stack.rows_per_dim.items()
            }
        )

    def flat_dim(self, side: str) -> int:
        """Width of ``SideInputs.flat`` for one side."""
        return self.layouts[side].flat_dim(self.pool_sequences)

    def forward(self, side: str, ids: Tensor, floats: Tensor) -> SideInputs:
        """Look one side up: ids [B, num_ids] of any integer type, floats [B, num_floats]."""
        return self.forward_sides({side: (ids, floats)})[side]

    def forward_sides(self, inputs: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, SideInputs]:
        """Look several sides up at once, each with its own number of rows.

        In training, use this once a step: a row that two sides share then gets one update from the sum of its
        gradients, where two calls of ``forward`` would update it twice.

        Args:
            inputs: Per side, ids [B, num_ids] and floats [B, num_floats].
        """
        gather = Gather()
        requests = {
            side: SideRequest(gather, self.stack, self.layouts[side], ids, pool_sequences=self.pool_sequences)
            for side, (ids, _) in inputs.items()
        }
        gather.run(self._look_up)
        return {side: requests[side].assemble(floats) for side, (_, floats) in inputs.items()}

    def _look_up(self, dim: int, rows: Tensor, lengths: Tensor) -> Tensor:
        if self._sharded is not None:
            return self._sharded.look_up(dim, rows, lengths)
        key = _key(dim)
        bags = KeyedJaggedTensor(keys=[key], values=rows, lengths=lengths)
        return self.collections[key](bags).values()

    @torch.no_grad()
    def weight(self, table: str) -> Tensor:
        """The rows of one table, [rows, D]; a view: writing to it changes the table. Not while sharded."""
        return self._matrix(self.stack.tables[table].dim).detach()[self.stack.rows(table)]

    def _matrix(self, dim: int) -> Tensor:
        return self.collections[_key(dim)].embedding_bags[_key(dim)].weight

    @torch.no_grad()
    def reinitialise(self, tables: Iterable[str], *, seed: int) -> None:
        """Draw the named tables anew and forget what their optimiser has accumulated."""
        generator = torch.Generator().manual_seed(seed)
        for name in sorted(tables):
            table = self.stack.tables[name]
            bound = 1 / math.sqrt(table.dim if self._init == "dim" else table.num_rows)
            drawn = torch.empty(table.num_rows, table.dim).uniform_(-bound, bound, generator=generator)
            drawn[0] = 0.0
            self._write(name, weights=drawn, accumulated=torch.zeros(table.num_rows))

    def _write(self, table: str, *, weights: Tensor | None = None, accumulated: Tensor | None = None) -> None:
        dim, rows = self.stack.tables[table].dim, self.stack.rows(table)
        if self._sharded is not None:
            self._sharded.write(dim, rows.start, weights=weights, accumulated=accumulated)
            return
        if weights is not None:
            self._matrix(dim).detach()[rows].copy_(weights)
        if accumulated is not None:
            _accumulated(self.collections[_key(dim)])[rows].copy_(accumulated)

    def export_tables(self) -> dict[str, np.ndarray]:
        """Copies of all tables as ``tables.<name>``: float32 [rows, D], row 0 zeros."""
        return {f"tables.{name}": self.weight(name).cpu().numpy().copy() for name in self.stack.tables}

    @torch.no_grad()
    def import_tables(self, tables: Mapping[str, np.ndarray]) -> None:
        """Overwrite tables by what ``export_tables`` gave; names that this schema lacks are left out.

        Raises:
            MismatchError: A table has another shape here.
        """
        for name in self.stack.tables:
            weight, values = self.weight(name), tables.get(f"tables.{name}")
            if values is None:
                continue
            if values.shape != tuple(weight.shape):
                raise MismatchError(f"tables.{name}: expected shape {tuple(weight.shape)}, got {values.shape}")
            weight.copy_(torch.from_numpy(np.array(values)))

    def scale_learning_rate(self, factor: float) -> None:
        """Use ``factor`` times the learning rate that the tables were made with, from the next backward pass on."""
        if self._sharded is not None:
            self._sharded.set_learning_rate(self.learning_rate * factor)
        for collection in self.collections.values():
            optimizer = collection.fused_optimizer()
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate * factor
            optimizer.step()

    def optimizer_state(self) -> dict[str, Tensor]:
        """The accumulated squares of each table, [rows]; views: writing to them changes the optimiser.

        While sharded they are copies, and only the main process has them.
        """
        accumulated: dict[int, Tensor | None] = {
            dim: _accumulated(self.collections[_key(dim)]) if self._sharded is None else self._sharded.accumulated(dim)
            for dim in self.stack.rows_per_dim
        }
        found = {name: (accumulated[table.dim], self.stack.rows(name)) for name, table in self.stack.tables.items()}
        return {name: values[rows] for name, (values, rows) in found.items() if values is not None}

    def load_optimizer_state(self, states: Mapping[str, Tensor]) -> None:
        """Put back what ``optimizer_state`` gave."""
        for name in self.stack.tables:
            self._write(name, accumulated=states[name])

    def matrices(self) -> dict[str, Tensor]:
        """The stacked matrices by the names that they have in ``state_dict``; while sharded, in the main process."""
        found = {
            dim: self._matrix(dim).detach() if self._sharded is None else self._sharded.weights(dim)
            for dim in self.stack.rows_per_dim
        }
        return {_matrix_name(dim): values for dim, values in found.items() if values is not None}

    def matrix_shapes(self) -> dict[str, tuple[int, int]]:
        """The shapes of ``matrices``."""
        return {_matrix_name(dim): (rows, dim) for dim, rows in self.stack.rows_per_dim.items()}

    @torch.no_grad()
    def load_matrices(self, matrices: Mapping[str, Tensor]) -> None:
        """Put back what ``matrices`` gave; names of anything else are left out."""
        for dim in self.stack.rows_per_dim:
            values = matrices[_matrix_name(dim)]
            if self._sharded is None:
                self._matrix(dim).copy_(values)
            else:
                self._sharded.write(dim, 0, weights=values)


def feature_tables(model: nn.Module) -> list[FeatureTables]:
    """Every ``FeatureTables`` inside a model."""
    return [module for module in model.modules() if isinstance(module, FeatureTables)]


def dense_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a model that no ``FeatureTables`` inside it trains on its own."""
    fused = {id(parameter) for tables in feature_tables(model) for parameter in tables.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in fused}


def _tables_of(layouts: Iterable[SideLayout]) -> list[str]:
    names = []
    for layout in layouts:
        names += [column.table for column in layout.bags]
        names += [field.table for sequence in layout.sequences for field in sequence.fields]
    return names


def _check_dims(stack: Stack) -> None:
    for name, table in stack.tables.items():
        if table.dim % 4:
            raise ConfigError(f"tables.{name}.dim must be a multiple of 4 to be trained, got {table.dim}")


def _key(dim: int) -> str:
    return f"dim{dim}"


def _matrix_name(dim: int) -> str:
    return f"collections.{_key(dim)}.embedding_bags.{_key(dim)}.weight"


def _collection(
    dim: int, num_rows: int, learning_rate: float, epsilon: float, device: torch.device
) -> FusedEmbeddingBagCollection:
    config = EmbeddingBagConfig(
        name=_key(dim),
        embedding_dim=dim,
        num_embeddings=num_rows,
        feature_names=[_key(dim)],
        pooling=PoolingType.MEAN,
    )
    return FusedEmbeddingBagCollection([config], RowWiseAdagrad, {"lr": learning_rate, "eps": epsilon}, device=device)


def _accumulated(collection: FusedEmbeddingBagCollection) -> Tensor:
    """The row-wise sums of squares [rows] of the one matrix of a collection."""
    (state,) = collection.fused_optimizer().state.values()
    return next(value for name, value in state.items() if name.endswith("momentum_1"))
