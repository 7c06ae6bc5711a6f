"""Begins a model from a trained one whose schema may differ: what is unchanged is carried over, optimisers included.

After a feature was added, removed or resized, only its own rows of the projections that read it start anew; of tables,
those whose ids mean something else. A parameter without such rows is carried where name and shape are the same.
Everything that starts anew is named with its reason.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from contracts.schema import FeatureSchema
from modeling import checkpoint
from modeling.loop_state import LoopState
from modeling.tables import FeatureTables
from modeling.warm_report import WarmReport
from modeling.warm_rows import KeyedRows, same_table_rows

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class WarmModel:
    """A model as a warm start sees it.

    Args:
        schema: Of the model.
        tables: Its embedding tables.
        parameters: Its dense parameters by their own names.
        names: Of each own name the canonical one, by which another model's parameter is found.
        rows: Those of every projection of features, by canonical name.
    """

    schema: FeatureSchema
    tables: FeatureTables
    parameters: Mapping[str, nn.Parameter]
    names: Mapping[str, str]
    rows: Mapping[str, KeyedRows]


@dataclass(frozen=True)
class OptimizerStates:
    """What optimisers had accumulated where a model comes from; empty where it keeps none.

    Args:
        adam: Of the dense parameters, by their own names.
        adagrad: The accumulated squares [rows] of each table.
    """

    adam: checkpoint.DenseStates = field(default_factory=dict)
    adagrad: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class WarmStart:
    """What :func:`carry_over` leaves for the training loop, beside the weights that the model holds already.

    Args:
        adam: States of dense parameters, by the new model's names; those that start anew are absent.
        report: What was carried.
        version: Of the source.
    """

    adam: checkpoint.DenseStates
    report: WarmReport
    version: str


def optimizer_states(run: Path) -> OptimizerStates:
    """Those of a finished run, as of the step whose weights it kept."""
    directory = run / CHECKPOINTS
    newest = checkpoint.latest(directory)
    if newest is None:
        return OptimizerStates()
    state = newest.state(LoopState)
    best = newest if state.best_step is None else checkpoint.at(directory, state.best_step)
    return OptimizerStates(checkpoint.dense_states(best), best.tensors("tables.tables."))


@torch.no_grad()
def carry_over(
    old: WarmModel,
    new: WarmModel,
    states: OptimizerStates,
    *,
    name: str,
    version: str,
    why_anew: Callable[[str, Hashable], tuple[str, str]],
) -> WarmStart:
    """Copy what is unchanged from an old model into a fresh one.

    Rows of a parameter that start anew beside rows that are carried get a first moment of zero and the mean second
    moment of the others: Adam's step count belongs to the whole parameter, so a second moment of zero would make
    their first steps far too long.

    Args:
        old: Trained.
        new: Holds its initial weights; not yet spread over processes.
        states: Of the old model's optimisers.
        name: Of the old model, for messages.
        version: Of the old model.
        why_anew: Name and reason of a row that has no like, from the parameter's canonical name and the row's key.
    """
    dense = _DenseCarrier(old, new, states.adam, why_anew)
    for parameter in new.parameters:
        dense.carry(parameter)
    rows, tables_anew = _carry_tables(old.tables, new.tables, states.adagrad)
    report = WarmReport(
        source=f"{name} ({version})",
        optimizer=bool(dense.adam),
        carried={"dense weights": dense.carried, "table rows": rows},
        total={
            "dense weights": dense.total,
            "table rows": sum(table.num_rows for table in new.tables.stack.tables.values()),
        },
        anew=dense.anew | tables_anew,
        removed=sorted(set(old.schema.features) - set(new.schema.features)),
    )
    return WarmStart(dense.adam, report, version)


class _DenseCarrier:
    """Copies dense parameters and their Adam states, one at a time, and keeps account."""

    def __init__(
        self,
        old: WarmModel,
        new: WarmModel,
        states: checkpoint.DenseStates,
        why_anew: Callable[[str, Hashable], tuple[str, str]],
    ) -> None:
        self._old, self._new, self._states, self._why_anew = old, new, states, why_anew
        self._old_names = {own: name for name, own in old.names.items()}
        self.carried = self.total = 0
        self.adam: dict[str, dict[str, Tensor]] = {}
        self.anew: dict[str, str] = {}

    def carry(self, name: str) -> None:
        """Copy what is unchanged of one parameter of the new model."""
        own, new = self._new.names[name], self._new.parameters[name].detach()
        rows, old_rows = self._new.rows.get(own), self._old.rows.get(own)
        self.total += new.numel() if rows is None else rows.size(new) * sum(key is not None for key in rows.keys)
        old_name = self._old_names.get(own)
        if old_name is None:
            self.anew[_module(own)] = "is not in the source"
            return
        old, state = self._old.parameters[old_name].detach(), self._states.get(old_name)
        if rows is not None and old_rows is not None and rows.shape(new) == old_rows.shape(old):
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
            row, reason = self._why_anew(self._new.names[name], rows.keys[at])
            self.anew[row] = reason
        if not into:
            return
        rows.view(new)[into] = old_rows.view(old)[out_of]
        self.carried += len(into) * rows.size(new)
        if state is not None:
            self.adam[name] = {"step": state["step"].clone()}
            for part in state.keys() - {"step"}:
                values = self.adam[name][part] = torch.zeros_like(new)
                rows.view(values)[into] = old_rows.view(state[part])[out_of].to(values)
                if part == "exp_avg_sq":
                    rows.view(values)[fresh] = rows.view(values)[into].mean(dim=0)


def _module(parameter: str) -> str:
    """The module that a parameter belongs to."""
    return parameter.rpartition(".")[0]


def _carry_tables(
    source: FeatureTables, tables: FeatureTables, states: Mapping[str, Tensor]
) -> tuple[int, dict[str, str]]:
    """Copy rows whose ids mean the same; their number, and what starts anew."""
    carried, anew = 0, {}
    known, adagrad = source.stack.tables, tables.optimizer_state()
    for name, table in tables.stack.tables.items():
        into, out_of = same_table_rows(known.get(name), table)
        if not into:
            anew[f"table {name}"] = "is not in the source" if name not in known else "has another width or other ids"
            continue
        if len(into) < table.num_rows:
            anew[f"table {name}"] = f"{table.num_rows - len(into):,} of {table.num_rows:,} rows are of new values"
        tables.weight(name)[into] = source.weight(name)[out_of]
        if name in states:
            adagrad[name][into] = states[name][out_of]
        carried += len(into)
    return carried, anew
