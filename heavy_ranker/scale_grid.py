"""The grid of a scaling study: which configurations are trained, on how much of the log."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import product

import msgspec

from contracts.config import with_changes
from contracts.errors import InputError
from contracts.schema import DEFAULT_AGE_DIM, Feature, FeatureSchema
from heavy_ranker.config import HeavyConfig, ModelConfig

_MOST = 100_000


@dataclass(frozen=True)
class Cell:
    """One run of the grid.

    Args:
        width: Token width, T.
        layers: Backbone layers.
        embedding: Factor on the dims of all tables.
        days: Of the log, before the test begins.
        seed: Of weights and order.
    """

    width: int
    layers: int
    embedding: int
    days: float
    seed: int

    @property
    def name(self) -> str:
        """Names its files.

        Example:
            >>> Cell(width=32, layers=1, embedding=2, days=4.0, seed=0).name
            'width32-layers1-embedding2-days4-seed0'
        """
        return "-".join(f"{name}{value:g}" for name, value in asdict(self).items())

    @property
    def factors(self) -> dict[str, float]:
        """What the effects are fitted on: doublings of width, embedding and days, and layers as they are."""
        return {
            "log2 width": math.log2(self.width),
            "layers": float(self.layers),
            "log2 embedding": math.log2(self.embedding),
            "log2 days": math.log2(self.days),
        }


def grid(
    *, widths: list[int], layers: list[int], embeddings: list[int], days: list[float], seeds: int
) -> tuple[Cell, ...]:
    """Every combination, smallest first, so that a study that is cut short has whole corners.

    Raises:
        InputError: A list is empty, repeats a value, or holds one that is not positive, no number, or very large.
    """
    options: dict[str, Sequence[float]] = {
        "widths": widths,
        "layers": layers,
        "embeddings": embeddings,
        "days": days,
        "seeds": [seeds],
    }
    for option, values in options.items():
        distinct = {f"{value:g}" for value in values}  # as cells are named
        if not values or len(distinct) < len(values) or not all(0 < value <= _MOST for value in values):
            raise InputError(f"{option}: expected different positive numbers up to {_MOST:,}, got {list(values)}")
    return tuple(
        Cell(width, depth, embedding, float(length), seed)
        for seed, length, embedding, depth, width in product(
            range(seeds), sorted(days), sorted(embeddings), sorted(layers), sorted(widths)
        )
    )


def cell_config(base: HeavyConfig, cell: Cell) -> HeavyConfig:
    """The base configuration at a cell's sizes; every hidden width keeps its ratio to the token's.

    Raises:
        ConfigError: A size is out of its range.
    """
    return msgspec.structs.replace(base, model=_model(base.model, cell), seed=cell.seed)


def _model(base: ModelConfig, cell: Cell) -> ModelConfig:
    def scaled(value: int) -> int:
        return max(1, round(value * cell.width / base.token_dim))

    sizes = {
        "token_dim": cell.width,
        "num_layers": cell.layers,
        "query_hidden_dim": scaled(base.query_hidden_dim),
        "expert_dim": scaled(base.expert_dim),
        "head_dims": [scaled(dim) for dim in base.head_dims],
    }
    return with_changes(base, sizes, source=f"cell {cell.name}")


def cell_schema(schema: FeatureSchema, cell: Cell) -> FeatureSchema:
    """The schema with the dims of all its tables, those of ages included, multiplied by the cell's factor."""
    tables = {
        name: msgspec.structs.replace(table, dim=table.dim * cell.embedding) for name, table in schema.tables.items()
    }
    features = {name: _scaled_ages(feature, cell.embedding) for name, feature in schema.features.items()}
    return msgspec.structs.replace(schema, tables=tables, features=features)


def _scaled_ages(feature: Feature, factor: int) -> Feature:
    if feature.fields is None:
        return feature
    fields = {
        name: msgspec.structs.replace(field, dim=(field.dim or DEFAULT_AGE_DIM) * factor)
        if field.kind == "age"
        else field
        for name, field in feature.fields.items()
    }
    return msgspec.structs.replace(feature, fields=fields)


def cell_start(cell: Cell, until: datetime) -> datetime:
    """When a cell's training window begins."""
    return until - timedelta(days=cell.days)
