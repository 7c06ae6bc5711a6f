"""The rows of a heavy ranker's projections of features: a side's tokens, a sequence's events.

A token's row is keyed by the token too. All other parameters have no rows; they are the same where names and shapes
are.
"""

from collections.abc import Hashable, Iterator, Sequence

from torch import nn

from contracts.layout import SequenceLayout, side_layout
from contracts.schema import FeatureSchema
from heavy_ranker.config import ModelConfig
from heavy_ranker.model import HeavyModel
from heavy_ranker.tokens import GroupTokens
from modeling.tables import dense_parameters
from modeling.warm_rows import KeyedRows, flat_columns, table_content


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
        columns = flat_columns(schema, layout.flat(pool_sequences=False))
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


def _event_columns(schema: FeatureSchema, sequence: SequenceLayout) -> Iterator[tuple[Hashable, ...]]:
    """The field, its table and the place in it of each column of an event."""
    tables = schema.all_tables()
    for field in sequence.fields:
        content = field.table, table_content(tables[field.table])
        yield from ((field.name, content, place) for place in range(field.dim))
