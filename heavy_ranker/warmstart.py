"""Begins a heavy ranker from a trained one whose schema may differ; modeling/warm_start.py does the carrying.

Beside features that were added, removed or resized, one that moved to another token starts anew alone.
"""

from collections.abc import Callable, Hashable
from pathlib import Path

import msgspec

from contracts.layout import side_layout
from contracts.schema import FeatureSchema
from heavy_ranker.build import model_sides
from heavy_ranker.config import HeavyConfig, SideGroups
from heavy_ranker.model import HeavyModel
from heavy_ranker.run import build_model, load_run
from heavy_ranker.warmstart_rows import canonical_names, keyed_rows
from modeling import warm_source
from modeling.tables import dense_parameters
from modeling.warm_rows import feature_content
from modeling.warm_start import OptimizerStates, WarmModel, WarmStart, carry_over

WarmSource = warm_source.WarmSource[HeavyConfig, HeavyModel]
"""A trained heavy ranker; its configuration holds its token groups."""


def open_source(path: Path) -> WarmSource:
    """A finished run, with its optimisers' state as of its best weights, or a sealed bundle, with weights alone.

    Raises:
        InputError: ``path`` is neither.
    """
    return warm_source.read_source(path, kind="heavy", config_type=HeavyConfig, build=build_model, load_run=load_run)


def continued_groups(schema: FeatureSchema, groups: SideGroups) -> SideGroups:
    """The source's token groups for a schema that may differ: features stay where they were.

    A feature that is new joins the group of its label, else the narrowest of its side; a group without features is
    dropped. A side that the source lacks is left to the configuration.
    """
    found: SideGroups = {}
    for side in model_sides(schema):
        slices = {piece.name: piece for piece in side_layout(schema, side).flat(pool_sequences=False)}
        kept = {group: [name for name in names if name in slices] for group, names in groups.get(side, {}).items()}
        kept = {group: names for group, names in kept.items() if names}
        placed = {name for names in kept.values() for name in names}
        for name, piece in slices.items():
            if kept and name not in placed:
                label = schema.features[piece.name].label
                widths = {group: sum(slices[member].width for member in names) for group, names in kept.items()}
                kept[label if label in kept else min(widths, key=lambda group: widths[group])].append(name)
        if kept:
            found[side] = {group: tuple(names) for group, names in kept.items()}
    return found


def with_continued_groups(schema: FeatureSchema, config: HeavyConfig, source: WarmSource) -> HeavyConfig:
    """The configuration with the source's token groups for the sides of which it names none.

    Unchanged where tokens are equal pieces: there are no groups.
    """
    if config.model.token_split == "equal":
        return config
    groups = continued_groups(schema, source.config.model.groups) | config.model.groups
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, groups=groups))


def carry(source: WarmSource, schema: FeatureSchema, config: HeavyConfig, model: HeavyModel) -> WarmStart:
    """Copy what is unchanged from a source into a fresh model.

    Args:
        schema: Of the fresh model.
        config: Of the run that begins, with its token groups. With another dense optimizer than the source's, that one
            begins anew.
        model: Holds its initial weights; not yet spread over processes.
    """
    states = source.states
    if config.loop.dense_optimizer != source.config.loop.dense_optimizer:
        states = OptimizerStates(adagrad=states.adagrad)
    return carry_over(
        _warm_model(source.schema, source.config, source.model),
        _warm_model(schema, config, model),
        states,
        name=source.name,
        version=source.version,
        why_anew=_reasons(source.schema, schema),
    )


def _warm_model(schema: FeatureSchema, config: HeavyConfig, model: HeavyModel) -> WarmModel:
    rows = keyed_rows(schema, config.model, model)
    return WarmModel(schema, model.tables, dense_parameters(model), canonical_names(model), rows)


def _reasons(old: FeatureSchema, new: FeatureSchema) -> Callable[[str, Hashable], tuple[str, str]]:
    """Why one row of a projection has no like in the source."""

    def reason(parameter: str, key: Hashable) -> tuple[str, str]:
        if not isinstance(key, tuple):  # the bias of a token
            return f"{parameter.removesuffix('.bias')} {key}", "is a token that the source lacks"
        group, name = key[:2] if len(key) >= _TOKEN_KEY else (None, key[0])
        if group is None:
            sequence = parameter.partition("<")[2].partition(">")[0]
            return f"{sequence}.{name}", "is new in its sequence, or its table is another one"
        if name not in old.features:
            return name, "is not in the source"
        if feature_content(new, name) != feature_content(old, name):
            return name, "has another width, kind or table"
        return name, f"is in another token, {group}"

    return reason


_TOKEN_KEY = 5  # token, feature, width, content, place; and of a bin of a value, two more
