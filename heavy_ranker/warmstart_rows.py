"""What each row of a projection reads, so that the rows of an unchanged feature are found again in another model.

A projection of features (a side's tokens, a sequence's events) has one row of weights for each column of its input.
A row's key names the token, the feature, what decides the feature's columns, and the column: equal keys read the same
thing. All other parameters have no rows; they are the same where their names and shapes are.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import Tensor, nn

from contracts.layout import FlatSlice, SequenceLayout, side_layout
from contracts.schema import Feature, FeatureSchema, Table
from heavy_ranker.config import ModelConfig
from heavy_ranker.model import HeavyModel
from heavy_ranker.tokens import GroupTokens
from modeling.tables import dense_parameters

REFITTED = ("fitted", "default", "label", "max_length")
"""Parts of a feature that shift its values a little and leave its columns as they are: its projection stays."""


@dataclass(frozen=True)
class KeyedRows:
    """The rows of one parameter.

    Args:
        view: A tensor of the parameter's shape as [rows, ...]; a view, so that writing to it changes the tensor.
        keys: What each row reads; None for padding.
    """

    view: Callable[[Tensor], Tensor]
    keys: tuple[Hashable, ...]


def canonical_names(model: HeavyModel) -> dict[str, str]:
    """Each dense parameter's name with sequences named instead of numbered, so that another one does not shift them."""
    renames: dict[str, str] = {}
    for name, module in model.named_modules():
        sequences: Sequence[str] = getattr(module, "sequence_names", ())
        for child, members in module.named_children():
            if sequences and isinstance(members, nn.ModuleList) and len(members) == len(sequences):
                prefix = f"{name}.{child}"
                renames |= {f"{prefix}.{at}.": f"{prefix}.<{own}>." for at, own in enumerate(sequences)}
    found = {}
    for name in dense_parameters(model):
        prefixes = [prefix for prefix in renames if name.startswith(prefix)]
        longest = max(prefixes, key=len, default="")
        found[name] = renames.get(longest, "") + name.removeprefix(longest)
    return found


def keyed_rows(schema: FeatureSchema, config: ModelConfig, model: HeavyModel) -> dict[str, KeyedRows]:
    """The rows of every projection of features, by the parameter's canonical name."""
    ranker, found = model.ranker, {}
    sides = {"query": ("request_tokens", ranker.request_tokens), "ad": ("ad_tokens", ranker.ad_tokens)}
    if ranker.pair_tokens is not None:
        sides["pair"] = ("pair_tokens", ranker.pair_tokens)
    for side, (name, tokens) in sides.items():
        layout = side_layout(schema, side)  # type: ignore[arg-type]
        names = token_names(config, side, tokens)
        columns = _columns(schema, layout.flat(pool_sequences=False))
        if tokens.numeric is not None:
            bins = tokens.numeric.num_bins
            columns += [(*columns[column], place, bins) for column, place in tokens.numeric.sources()]
        keys = [
            None if column == tokens.in_dim else (names[at // tokens.width], *columns[column])
            for at, column in enumerate(tokens.columns.tolist())
        ]
        found[f"ranker.{name}.weight"] = KeyedRows(lambda tensor: tensor.flatten(0, 1), tuple(keys))
        found[f"ranker.{name}.bias"] = KeyedRows(lambda tensor: tensor, tuple(names))
    for sequence in side_layout(schema, "query").sequences:
        keys = list(_event_columns(schema, sequence))
        found[f"ranker.events.<{sequence.name}>.project.weight"] = KeyedRows(lambda tensor: tensor.T, tuple(keys))
    return found


def token_names(config: ModelConfig, side: str, tokens: GroupTokens) -> list[str]:
    """The groups of a side's tokens; their numbers where features are not grouped by meaning."""
    groups = list(config.groups.get(side, {}))  # type: ignore[call-overload]
    return groups if len(groups) == tokens.num_tokens else [f"token {at}" for at in range(tokens.num_tokens)]


def feature_content(schema: FeatureSchema, name: str) -> tuple[Any, ...]:
    """What decides the columns of a feature, its statistics apart; two features with the same are interchangeable."""
    feature = schema.features[name]
    content = {key: value for key, value in _plain(feature).items() if key not in (*REFITTED, "fields")}
    return _frozen(content), None if feature.table is None else table_content(schema.tables[feature.table])


def table_content(table: Table) -> tuple[Any, ...]:
    """What decides which row an id is; a vocabulary's values do not, since its rows are found by them."""
    return table.dim, table.buckets, table.vocabulary is not None


def _columns(schema: FeatureSchema, slices: Sequence[FlatSlice]) -> list[tuple[Hashable, ...]]:
    """The feature, its content and the place in it of each column of a side's flat input."""
    found: list[tuple[Hashable, ...]] = []
    for piece in sorted(slices, key=lambda piece: piece.start):
        content = feature_content(schema, piece.name)
        found += [(piece.name, piece.width, content, place) for place in range(piece.width)]
    return found


def _event_columns(schema: FeatureSchema, sequence: SequenceLayout) -> Iterator[tuple[Hashable, ...]]:
    """The field, its table and the place in it of each column of an event."""
    tables = schema.all_tables()
    for field in sequence.fields:
        content = field.table, table_content(tables[field.table])
        yield from ((field.name, content, place) for place in range(field.dim))


def _plain(feature: Feature) -> dict[str, Any]:
    return msgspec.to_builtins(feature)


def _frozen(content: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(content.items()))
