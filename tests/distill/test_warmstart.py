"""A student that begins from another one: what is carried, what starts anew, and what a run remembers of it."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from contracts.bundle import Bundle
from contracts.config import convert
from contracts.errors import InputError
from contracts.layout import side_layout
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from distill.config import DistillConfig
from distill.run import Run, build_student, load_run
from distill.train import forward, train_student
from distill.warmstart import BEGINNING, WarmSource, begun, carry, difference, open_source
from modeling import checkpoint
from modeling.batches import gather
from modeling.examples import Examples
from modeling.warm_start import CHECKPOINTS, WarmStart
from towers.two_tower import TwoTower


@pytest.fixture(scope="module")
def source(run: Run) -> WarmSource:
    return open_source(run.path)


def _changed(schema: FeatureSchema, **changes: dict) -> FeatureSchema:
    """The schema with parts replaced: a feature or table of None is removed."""
    content = msgspec.to_builtins(schema)
    for part, values in changes.items():
        content[part] = {name: value for name, value in (content[part] | values).items() if value is not None}
    return convert({"version": 1, **content}, FeatureSchema, source="changed schema")


def _begun(source: WarmSource, schema: FeatureSchema, config: DistillConfig) -> tuple[TwoTower, WarmStart]:
    model = build_student(schema, msgspec.structs.replace(config, seed=99))
    return model, carry(source, schema, config, model)


def _logits(model: TwoTower, examples: Examples) -> torch.Tensor:
    with torch.no_grad():
        return forward(model.eval(), gather(examples, np.arange(0, len(examples), 7)))


def _columns(schema: FeatureSchema, side: str, feature: str) -> slice:
    piece = next(p for p in side_layout(schema, side).flat(pool_sequences=True) if p.name == feature)
    return slice(piece.start, piece.start + piece.width)


def test_the_same_schema_carries_everything(
    source: WarmSource, schema: FeatureSchema, config: DistillConfig, run: Run, examples: Examples
) -> None:
    model, start = _begun(source, schema, config)
    assert start.report.anew == {}
    assert start.report.carried == start.report.total
    assert torch.equal(_logits(model, examples), _logits(run.model, examples))
    kept = checkpoint.at(run.path / CHECKPOINTS, run.summary.steps["kept"])
    expected = checkpoint.dense_states(kept)
    assert start.adam.keys() == expected.keys()
    for name, state in expected.items():
        assert all(torch.equal(start.adam[name][part], values) for part, values in state.items())
    for name, accumulated in model.tables.optimizer_state().items():
        assert torch.equal(accumulated, source.states.adagrad[name])
        assert accumulated.any()


def test_a_sealed_bundle_gives_what_its_run_gives(
    bundle: Bundle, source: WarmSource, schema: FeatureSchema, config: DistillConfig, examples: Examples
) -> None:
    sealed = open_source(bundle.path)
    assert sealed.version == bundle.manifest.version
    found, expected = (_begun(origin, schema, config) for origin in (sealed, source))
    assert found[1].report.carried == found[1].report.total
    assert torch.equal(_logits(found[0], examples), _logits(source.model, examples))
    for name, state in expected[1].adam.items():
        assert all(torch.equal(found[1].adam[name][part], values) for part, values in state.items())
    for name, sums in expected[0].tables.optimizer_state().items():
        assert torch.equal(found[0].tables.optimizer_state()[name], sums)


def test_a_new_feature_starts_its_own_columns_anew_and_nothing_else(
    source: WarmSource, schema: FeatureSchema, config: DistillConfig
) -> None:
    wider = _changed(schema, features={"hour": {"side": "query", "kind": "dense", "default": 3.0}})
    model, start = _begun(source, wider, config)
    assert start.report.anew == {"hour": "is not in the source"}
    assert start.report.total["dense weights"] - start.report.carried["dense weights"] == config.towers.query.width
    weight, old = model.query_tower.stem[0].weight, source.model.query_tower.stem[0].weight
    for piece in side_layout(schema, "query").flat(pool_sequences=True):
        before = _columns(schema, "query", piece.name)
        assert torch.equal(weight[:, _columns(wider, "query", piece.name)], old[:, before])
    state = start.adam["query_tower.stem.0.weight"]
    hour = _columns(wider, "query", "hour").start
    assert not state["exp_avg"][:, hour].any()
    others = [column for column in range(weight.shape[1]) if column != hour]
    torch.testing.assert_close(state["exp_avg_sq"][:, hour], state["exp_avg_sq"][:, others].mean(1))


def test_a_resized_table_starts_anew_with_what_reads_it_on_both_sides(
    source: WarmSource, schema: FeatureSchema, config: DistillConfig
) -> None:
    resized = _changed(schema, tables={"ad": {"dim": 4, "buckets": 128}})
    model, start = _begun(source, resized, config)
    reason = "has another width, kind or table"
    assert start.report.anew == {
        "ad_id": reason, "clicks.ad_id": reason, "table ad": "has another width or other ids",
    }  # fmt: skip
    for table in ("country", "category"):
        assert torch.equal(model.tables.weight(table), source.model.tables.weight(table))
    category = _columns(resized, "ad", "category"), _columns(schema, "ad", "category")
    new, old = (found.pin_tower.stem[0].weight for found in (model, source.model))
    assert torch.equal(new[:, category[0]], old[:, category[1]])


def test_a_removed_feature_and_a_vocabulary_that_grew(
    source: WarmSource, schema: FeatureSchema, config: DistillConfig
) -> None:
    other = _changed(
        schema, features={"price": None}, tables={"country": {"dim": 4, "vocabulary": ["AT", "日本", "DE"]}}
    )
    model, start = _begun(source, other, config)
    assert start.report.removed == ["price"]
    assert start.report.anew == {"table country": "1 of 6 rows are of new values"}
    new, old = model.tables.weight("country"), source.model.tables.weight("country")
    assert torch.equal(new[[0, 1, 2, 4, 5]], old[[0, 1, 2, 4, 3]])


def test_a_new_task_starts_its_head_anew_and_shifts_no_other(
    source: WarmSource, schema: FeatureSchema, config: DistillConfig
) -> None:
    """It is named first, so that every head's number moves by one."""
    content = msgspec.to_builtins(schema) | {"tasks": ["view", "click", "conversion"]}
    other = convert({"version": 1, **content}, FeatureSchema, source="changed schema")
    model, start = _begun(source, other, config)
    assert set(start.report.anew) == {
        "head view",
        *(f"{tower}.heads.projections.<view>" for tower in ("query_tower", "pin_tower")),
        *(f"{tower}.mixture.gates.<view>.hidden" for tower in ("query_tower", "pin_tower")),
        *(f"{tower}.mixture.gates.<view>.out" for tower in ("query_tower", "pin_tower")),
    }
    for at in range(2):
        for part in ("heads.projections", "mixture.gates"):
            new, old = (m.query_tower.get_submodule(part) for m in (model, source.model))
            assert all(torch.equal(a, b) for a, b in zip(new[at + 1].parameters(), old[at].parameters(), strict=True))
    assert torch.equal(model.query_tower.heads.log_scale[1:], source.model.query_tower.heads.log_scale)


def test_towers_of_other_sizes_are_told_apart(config: DistillConfig) -> None:
    towers = msgspec.structs.replace(config.towers, pin=msgspec.structs.replace(config.towers.pin, width=32))
    wider = msgspec.structs.replace(config, towers=towers)
    assert difference(config, wider) == "its towers.pin.width is 16, that of this run 32"
    assert difference(config, msgspec.structs.replace(config, seed=5, label_weight=0.5)) is None


def test_a_warm_run_is_better_from_its_first_look_and_remembers_its_beginning(
    bundle: Bundle, run: Run, schema: FeatureSchema, log: LogPaths, config: DistillConfig, tmp_path: Path
) -> None:
    short = msgspec.structs.replace(config, loop=msgspec.structs.replace(config.loop, epochs=2))
    source = open_source(bundle.path)
    out = tmp_path / "run"
    trained = train_student(schema, log, out, short, scenario="shopping", warm_start=source)
    assert trained.summary.warm_start.carried == trained.summary.warm_start.total
    assert trained.summary.history[0]["loss"] < run.summary.history[0]["loss"] / 5
    assert load_run(out).summary == trained.summary

    remembered = begun(out)
    assert remembered.version == bundle.manifest.version
    again = train_student(schema, log, out, short, scenario="shopping", warm_start=remembered)
    assert again.summary == trained.summary
    with pytest.raises(InputError, match=f"began from {bundle.manifest.version}, not fresh weights; choose another"):
        train_student(schema, log, out, short, scenario="shopping")


def test_a_run_that_was_killed_goes_on_although_its_source_has_gone(
    bundle: Bundle, schema: FeatureSchema, log: LogPaths, config: DistillConfig, tmp_path: Path
) -> None:
    """Cut down to its first checkpoint, as a kill leaves it, it ends with the bits of the whole run."""
    loop = msgspec.structs.replace(config.loop, epochs=2, checkpoint_every=3)
    short = msgspec.structs.replace(config, loop=loop)
    whole = train_student(
        schema, log, tmp_path / "whole", short, scenario="shopping", warm_start=open_source(bundle.path)
    )
    out = tmp_path / "broken"
    _train_until_killed(schema, log, out, short, open_source(bundle.path))
    assert json.loads((out / BEGINNING).read_text())["version"] == bundle.manifest.version
    resumed = train_student(schema, log, out, short, scenario="shopping", warm_start=begun(out))
    assert resumed.summary == whole.summary
    expected = whole.model.state_dict()
    assert all(torch.equal(expected[name], value) for name, value in resumed.model.state_dict().items())


class _KilledError(Exception):
    """Stands for the kill."""


def _train_until_killed(
    schema: FeatureSchema, log: LogPaths, out: Path, config: DistillConfig, source: WarmSource
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        saved = checkpoint.save

        def save_then_die(*arguments: object) -> None:
            saved(*arguments)
            raise _KilledError

        patch.setattr(checkpoint, "save", save_then_die)
        with pytest.raises(_KilledError):
            train_student(schema, log, out, config, scenario="shopping", warm_start=source)


def test_what_is_no_student_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^no run or bundle at {re.escape(str(tmp_path / 'shopping'))}$"):
        open_source(tmp_path / "shopping")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match="^no run or bundle at .*, it holds a training run that has not finished$"):
        open_source(tmp_path)
