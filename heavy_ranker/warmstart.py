"""Begins a run from a trained model whose schema may differ: what is unchanged is carried over, optimisers included.

After a feature was added, removed, resized or moved to another token, only its own rows of the projection start anew;
of tables, those whose ids mean something else. A parameter without such rows, such as a mixer's, is carried where
name and shape are the same. Everything that starts anew is named with its reason.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from contracts.artifact import file_sha256, is_ready
from contracts.bundle import WEIGHTS_FILE, open_bundle
from contracts.config import convert
from contracts.layout import side_layout
from contracts.schema import NUM_RESERVED, FeatureSchema, Table
from heavy_ranker.build import model_sides
from heavy_ranker.config import HeavyConfig, SideGroups
from heavy_ranker.model import HeavyModel
from heavy_ranker.run import build_model, load_run
from heavy_ranker.warmstart_report import WarmReport
from heavy_ranker.warmstart_rows import KeyedRows, canonical_names, feature_content, keyed_rows, table_content
from modeling import checkpoint
from modeling.loop_state import LoopState
from modeling.tables import FeatureTables, dense_parameters
from modeling.weights import load_weights

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class WarmSource:
    """A trained model to begin from.

    Args:
        name: Where it comes from, for messages.
        version: What it is: a run that begins from it goes on from no other.
        schema: Of the model.
        config: With its token groups.
        model: Its weights.
        adam: Of the dense parameters; empty from a sealed bundle, which keeps no optimiser.
        adagrad: The accumulated squares [rows] of each table; empty likewise.
    """

    name: str
    version: str
    schema: FeatureSchema
    config: HeavyConfig
    model: HeavyModel
    adam: checkpoint.DenseStates
    adagrad: dict[str, Tensor]


@dataclass(frozen=True)
class WarmStart:
    """What :func:`carry` leaves for the training loop, beside the weights that the model holds already.

    Args:
        adam: States of dense parameters, by the new model's names; those that start anew are absent.
        report: What was carried.
        version: Of the source.
    """

    adam: checkpoint.DenseStates
    report: WarmReport
    version: str


def open_source(path: Path) -> WarmSource:
    """A finished run, with its optimisers' state as of its best weights, or a sealed bundle, with weights alone.

    Raises:
        InputError: ``path`` is neither.
    """
    path = Path(path)
    if is_ready(path):
        bundle = open_bundle(path, kind="heavy")
        config = convert(bundle.config, HeavyConfig, source=str(path / "config.json"))
        model = build_model(bundle.schema, config)
        weights = {name: torch.from_numpy(values.copy()) for name, values in bundle.tensors().items()}
        load_weights(model, weights, source=path / WEIGHTS_FILE)
        return WarmSource(str(path), bundle.manifest.version, bundle.schema, config, model, {}, {})
    run = load_run(path)
    adam, adagrad = _optimizer_states(path / CHECKPOINTS)
    version = f"run-{file_sha256(path / WEIGHTS_FILE)[:12]}"
    return WarmSource(str(path), version, run.schema, run.config, run.model, adam, adagrad)


def _optimizer_states(directory: Path) -> tuple[checkpoint.DenseStates, dict[str, Tensor]]:
    """Of the step whose weights the run kept."""
    newest = checkpoint.latest(directory)
    if newest is None:
        return {}, {}
    state = newest.state(LoopState)
    best = newest if state.best_step is None else checkpoint.at(directory, state.best_step)
    return checkpoint.dense_states(best), best.tensors("tables.tables.")


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


@torch.no_grad()
def carry(source: WarmSource, schema: FeatureSchema, config: HeavyConfig, model: HeavyModel) -> WarmStart:
    """Copy what is unchanged from a source into a fresh model.

    Rows of a parameter that start anew beside rows that are carried get a first moment of zero and the mean second
    moment of the others: Adam's step count belongs to the whole parameter, so a second moment of zero would make
    their first steps far too long.

    Args:
        schema: Of the fresh model.
        config: Of the run that begins, with its token groups. With another dense optimizer than the source's, that one
            begins anew.
        model: Holds its initial weights; not yet spread over processes.
    """
    dense = _DenseCarrier(source, schema, config, model)
    for name in dense_parameters(model):
        dense.carry(name)
    rows, tables_anew = _carry_tables(source, model.tables)
    report = WarmReport(
        source=f"{source.name} ({source.version})",
        optimizer=bool(dense.adam),
        carried={"dense weights": dense.carried, "table rows": rows},
        total={
            "dense weights": dense.total,
            "table rows": sum(table.num_rows for table in model.tables.stack.tables.values()),
        },
        anew=dense.anew | tables_anew,
        removed=sorted(set(source.schema.features) - set(schema.features)),
    )
    return WarmStart(dense.adam, report, source.version)


class _DenseCarrier:
    """Copies dense parameters and their Adam states, one at a time, and keeps account."""

    def __init__(self, source: WarmSource, schema: FeatureSchema, config: HeavyConfig, model: HeavyModel) -> None:
        self._source, self._schema = source, schema
        same_optimizer = config.loop.dense_optimizer == source.config.loop.dense_optimizer
        self._states: checkpoint.DenseStates = source.adam if same_optimizer else {}
        self._parameters, self._names = dense_parameters(model), canonical_names(model)
        self._old_parameters = dense_parameters(source.model)
        self._old_names = {own: name for name, own in canonical_names(source.model).items()}
        self._rows = keyed_rows(schema, config.model, model)
        self._old_rows = keyed_rows(source.schema, source.config.model, source.model)
        self.carried = self.total = 0
        self.adam: dict[str, dict[str, Tensor]] = {}
        self.anew: dict[str, str] = {}

    def carry(self, name: str) -> None:
        """Copy what is unchanged of one parameter of the new model."""
        own, new = self._names[name], self._parameters[name].detach()
        rows, old_rows = self._rows.get(own), self._old_rows.get(own)
        self.total += new.numel() if rows is None else _row_size(rows, new) * sum(key is not None for key in rows.keys)
        old_name = self._old_names.get(own)
        if old_name is None:
            self.anew[_module(own)] = "is not in the source"
            return
        old, state = self._old_parameters[old_name].detach(), self._states.get(old_name)
        if rows is not None and old_rows is not None and _row_shape(rows, new) == _row_shape(old_rows, old):
            self._carry_rows(name, new, old, state, rows, old_rows)
        elif new.shape == old.shape:
            new.copy_(old)
            self.carried += new.numel()
            if state is not None:
                self.adam[name] = {part: values.clone() for part, values in state.items()}
        else:
            self.anew[_module(own)] = f"has shape {tuple(old.shape)} in the source, {tuple(new.shape)} here"

    def _carry_rows(
        self,
        name: str,
        new: Tensor,
        old: Tensor,
        state: Mapping[str, Tensor] | None,
        rows: KeyedRows,
        old_rows: KeyedRows,
    ) -> None:
        places = {key: at for at, key in enumerate(old_rows.keys) if key is not None}
        wanted = [(at, key) for at, key in enumerate(rows.keys) if key is not None]
        into = [at for at, key in wanted if key in places]
        out_of = [places[key] for _, key in wanted if key in places]
        fresh = [at for at, key in wanted if key not in places]
        for at in fresh:
            self._note(self._names[name], rows.keys[at])
        if not into:
            return
        rows.view(new)[into] = old_rows.view(old)[out_of]
        self.carried += len(into) * _row_size(rows, new)
        if state is not None:
            self.adam[name] = {"step": state["step"].clone()}
            for part in state.keys() - {"step"}:
                values = self.adam[name][part] = torch.zeros_like(new)
                rows.view(values)[into] = old_rows.view(state[part])[out_of].to(values)
                if part == "exp_avg_sq":
                    rows.view(values)[fresh] = rows.view(values)[into].mean(dim=0)

    def _note(self, parameter: str, key: Hashable) -> None:
        """Say why one row has no like in the source."""
        if not isinstance(key, tuple):  # the bias of a token
            self.anew[f"{parameter.removesuffix('.bias')} {key}"] = "is a token that the source lacks"
            return
        group, name = key[:2] if len(key) >= _TOKEN_KEY else (None, key[0])
        if group is None:
            sequence = parameter.partition("<")[2].partition(">")[0]
            self.anew[f"{sequence}.{name}"] = "is new in its sequence, or its table is another one"
        elif name not in self._source.schema.features:
            self.anew[name] = "is not in the source"
        elif feature_content(self._schema, name) != feature_content(self._source.schema, name):
            self.anew[name] = "has another width, kind or table"
        else:
            self.anew[name] = f"is in another token, {group}"


_TOKEN_KEY = 5  # token, feature, width, content, place; and of a bin of a value, two more


def _module(parameter: str) -> str:
    """The module that a parameter belongs to."""
    return parameter.rpartition(".")[0]


def _row_size(rows: KeyedRows, tensor: Tensor) -> int:
    return rows.view(tensor)[0].numel()


def _row_shape(rows: KeyedRows, tensor: Tensor) -> tuple[int, ...]:
    return tuple(rows.view(tensor).shape[1:])


def _carry_tables(source: WarmSource, tables: FeatureTables) -> tuple[int, dict[str, str]]:
    """Copy rows whose ids mean the same; their number, and what starts anew."""
    carried, anew = 0, {}
    known, adagrad = source.model.tables.stack.tables, tables.optimizer_state()
    for name, table in tables.stack.tables.items():
        into, out_of = _same_rows(known.get(name), table)
        if not into:
            anew[f"table {name}"] = "is not in the source" if name not in known else "has another width or other ids"
            continue
        if len(into) < table.num_rows:
            anew[f"table {name}"] = f"{table.num_rows - len(into):,} of {table.num_rows:,} rows are of new values"
        tables.weight(name)[into] = source.model.tables.weight(name)[out_of]
        if name in source.adagrad:
            adagrad[name][into] = source.adagrad[name][out_of]
        carried += len(into)
    return carried, anew


def _same_rows(old: Table | None, new: Table) -> tuple[list[int], list[int]]:
    """Rows of the new table, and those of the old one that stand for the same values; none where ids differ in kind.

    Example:
        >>> _same_rows(Table(dim=4, vocabulary=("a", "b")), Table(dim=4, vocabulary=("b", "c")))
        ([0, 1, 2, 3], [0, 1, 2, 4])
    """
    if old is None or table_content(old) != table_content(new):
        return [], []
    if old.vocabulary is None or new.vocabulary is None:
        return list(range(new.num_rows)), list(range(new.num_rows))
    places = {value: NUM_RESERVED + at for at, value in enumerate(old.vocabulary)}
    pairs = [(NUM_RESERVED + at, places[value]) for at, value in enumerate(new.vocabulary) if value in places]
    reserved = list(range(NUM_RESERVED))
    return reserved + [into for into, _ in pairs], reserved + [out_of for _, out_of in pairs]
