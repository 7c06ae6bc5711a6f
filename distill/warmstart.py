"""Begins a student from a trained one, such as the one that serves; modeling/warm_start.py does the carrying.

Shapes: F width of a tower's flat input, D width of its stem, H heads.
"""

import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import msgspec

from contracts.artifact import write_json
from contracts.errors import ArtifactError, InputError
from contracts.layout import side_layout
from contracts.schema import FeatureSchema
from distill.config import DistillConfig
from distill.run import build_student, load_run
from modeling import checkpoint, warm_source
from modeling.distributed import Ranks
from modeling.tables import dense_parameters
from modeling.warm_report import WarmReport
from modeling.warm_rows import KeyedRows, column_content, flat_columns
from modeling.warm_start import CHECKPOINTS, OptimizerStates, WarmModel, WarmStart, carry_over
from towers.config import TowerSide
from towers.two_tower import TwoTower

BEGINNING = "warm_start.json"
TOWERS: dict[str, TowerSide] = {"query_tower": "query", "pin_tower": "ad"}
_STEMS = ("stem.0.weight", "stem.linear.weight")
_NUMBERED_HEADS = re.compile(r"\b(heads\.projections|mixture\.gates)\.(\d+)\.")

WarmSource = warm_source.WarmSource[DistillConfig, TwoTower]
"""A trained student."""


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """What a run began from, kept beside its checkpoints: what serves may change before a killed run goes on.

    Args:
        version: Of the student that it began from; None for fresh weights.
        report: What was carried over.
    """

    version: str | None
    report: WarmReport | None


def open_source(path: Path) -> WarmSource:
    """A finished run or a sealed bundle, with its optimisers' state as of its weights.

    Raises:
        InputError: ``path`` is neither.
        ArtifactError: It is damaged.
    """
    return warm_source.read_source(
        path, kind="two_tower", config_type=DistillConfig, build=build_student, load_run=load_run
    )


def difference(source: DistillConfig, config: DistillConfig) -> str | None:
    """The first value in which the towers differ, in words; None where weights can be carried over."""
    old, new = (_flat(msgspec.to_builtins(found.towers), "towers") for found in (source, config))
    differing = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    if not differing:
        return None
    name = differing[0]
    return f"its {name} is {old.get(name)}, that of this run {new.get(name)}"


def _flat(values: object, name: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        return {name: values}
    return {key: leaf for part, inner in values.items() for key, leaf in _flat(inner, f"{name}.{part}").items()}


def begun(out: Path) -> Beginning | None:
    """What the run in a directory began from; None where it has no checkpoint yet, so that nothing is decided.

    Raises:
        ArtifactError: The record is truncated or altered.
    """
    path = out / BEGINNING
    if not path.exists() or checkpoint.latest(out / CHECKPOINTS) is None:
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Beginning)
    except msgspec.DecodeError as error:
        raise ArtifactError(f"{path}: not the beginning of a run: {error}") from error


def begin(
    out: Path,
    source: WarmSource | Beginning | None,
    schema: FeatureSchema,
    config: DistillConfig,
    model: TwoTower,
    ranks: Ranks,
) -> WarmStart | None:
    """Carry a source over into a fresh student and note it; a run that has begun goes on with what was noted.

    Args:
        source: Of a run that begins; what it began from, of one that goes on; None for fresh weights.
        model: Holds its initial weights; not yet spread over processes.

    Raises:
        InputError: The run in ``out`` began from something else.
    """
    earlier, version = begun(out), None if source is None else source.version
    if earlier is not None:
        if earlier.version != version:
            names = [name or "fresh weights" for name in (earlier.version, version)]
            raise InputError(f"{out}: holds a run that began from {names[0]}, not {names[1]}; choose another directory")
        return None if earlier.report is None else WarmStart({}, earlier.report, str(version))
    warm = carry(source, schema, config, model) if isinstance(source, warm_source.WarmSource) else None
    if ranks.is_main:
        write_json(out / BEGINNING, Beginning(version=version, report=None if warm is None else warm.report))
    return warm


def carry(source: WarmSource, schema: FeatureSchema, config: DistillConfig, model: TwoTower) -> WarmStart:
    """Copy what is unchanged of a source, whose towers have the same sizes, into a fresh student.

    Rows of the first layer are found by feature, heads and gates by task.

    Args:
        schema: Of the fresh student.
        config: Of the run that begins.
        model: Holds its initial weights.
    """
    states = source.states
    if config.loop.dense_optimizer != source.config.loop.dense_optimizer:
        states = OptimizerStates(adagrad=states.adagrad)
    return carry_over(
        _warm_model(source.schema, source.model),
        _warm_model(schema, model),
        states,
        name=source.name,
        version=source.version,
        why_anew=_reasons(source.schema, schema),
    )


def _warm_model(schema: FeatureSchema, model: TwoTower) -> WarmModel:
    parameters = dense_parameters(model)

    def by_task(found: re.Match[str]) -> str:
        return f"{found[1]}.<{schema.tasks[int(found[2])]}>."

    names = {name: _NUMBERED_HEADS.sub(by_task, name) for name in parameters}
    rows = {"query_tower.heads.log_scale": KeyedRows(lambda scales: scales, tuple(schema.tasks))}
    for tower, side in TOWERS.items():
        keys = tuple(flat_columns(schema, side_layout(schema, side).flat(pool_sequences=True)))
        stem = next(f"{tower}.{name}" for name in _STEMS if f"{tower}.{name}" in parameters)
        rows[stem] = KeyedRows(lambda weight: weight.T, keys)  # [D, F]: one column a row
    return WarmModel(schema, model.tables, parameters, names, rows)


def _reasons(old: FeatureSchema, new: FeatureSchema) -> Callable[[str, Hashable], tuple[str, str]]:
    """Why one row of a first layer, or the scale of a head, has no like in the source."""
    known = {
        piece.name for side in TOWERS.values() for piece in side_layout(old, side).flat(pool_sequences=True)
    }  # with the fields of sequences

    def reason(parameter: str, key: Hashable) -> tuple[str, str]:
        if not isinstance(key, tuple):
            return f"head {key}", "is a task that the source lacks"
        name = str(key[0])
        if name not in known:
            return name, "is not in the source"
        changed = column_content(new, name) != column_content(old, name)
        return name, "has another width, kind or table" if changed else "is on another side"

    return reason
