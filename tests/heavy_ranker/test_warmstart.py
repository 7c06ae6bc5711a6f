import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from contracts.config import convert
from contracts.errors import InputError
from contracts.schema import FeatureSchema, save_schema
from heavy_ranker.cli_incremental import warm_config
from heavy_ranker.data import read_impressions
from heavy_ranker.evaluate import predict
from heavy_ranker.run import build_model, load_run, with_groups
from heavy_ranker.train import train_heavy
from heavy_ranker.warmstart import WarmSource, carry, continued_groups, open_source, with_continued_groups
from modeling import checkpoint
from modeling.tables import dense_parameters
from modeling.warm_start import CHECKPOINTS, OptimizerStates


@pytest.fixture(scope="module")
def source(run):
    return open_source(run.path)


@pytest.fixture
def changed(schema):
    """The schema with parts replaced: a feature or table of None is removed."""

    def apply(*, features=None, tables=None):
        content = msgspec.to_builtins(schema)
        for part, changes in (("features", features), ("tables", tables)):
            content[part] = {
                name: value for name, value in (content[part] | (changes or {})).items() if value is not None
            }
        return convert({"version": 1, **content}, FeatureSchema, source="changed schema")

    return apply


@pytest.fixture
def warm(source, config):
    """A model of another schema, begun from the run: the model, its configuration, and what was carried."""

    def begin(schema, **changes):
        other = msgspec.structs.replace(config, seed=99, **changes)
        other = with_groups(schema, with_continued_groups(schema, other, source))
        model = build_model(schema, other)
        return model, other, carry(source, schema, other, model)

    return begin


def test_the_same_schema_carries_everything(source, schema, warm, run, log):
    model, _, start = warm(schema)
    assert start.report.anew == {}
    assert start.report.carried == start.report.total
    impressions = read_impressions(schema, log, run.path / "examples")
    np.testing.assert_array_equal(predict(model, impressions), predict(run.model, impressions))
    adam = checkpoint.dense_states(checkpoint.at(run.path / CHECKPOINTS, _best_step(run)))
    assert start.adam.keys() == adam.keys()
    for name, state in adam.items():
        assert all(torch.equal(start.adam[name][part], values) for part, values in state.items())
    for name, accumulated in model.tables.optimizer_state().items():
        assert torch.equal(accumulated, source.states.adagrad[name])


def test_a_new_feature_changes_nothing_but_its_own_rows(schema, changed, warm, run, log, tmp_path):
    """With its rows at zero the model of the wider schema gives what the source gave."""
    wider = changed(features={"hour": {"side": "query", "kind": "dense", "default": 3.0}})
    model, _, start = warm(wider)
    assert start.report.anew == {"hour": "is not in the source"}
    tokens = model.ranker.request_tokens
    assert start.report.total["dense weights"] - start.report.carried["dense weights"] == tokens.weight.shape[2]
    rows = [at for at, column in enumerate(tokens.columns.tolist()) if column == _column(wider, "query", "hour")]
    fresh = tokens.weight.detach().flatten(0, 1)[rows]
    assert (fresh != 0).all()
    with torch.no_grad():
        tokens.weight.detach().flatten(0, 1)[rows] = 0.0
    expected = predict(run.model, read_impressions(schema, log, run.path / "examples"))
    narrow = read_impressions(schema, log, run.path / "examples")
    np.testing.assert_allclose(predict(model, _with_hour(narrow, wider)), expected, atol=1e-6)


def test_new_rows_begin_with_the_moments_of_a_parameter_in_motion(changed, warm):
    wider = changed(features={"hour": {"side": "query", "kind": "dense", "default": 3.0}})
    model, _, start = warm(wider)
    tokens = model.ranker.request_tokens
    row = tokens.columns.tolist().index(_column(wider, "query", "hour"))
    state = start.adam["ranker.request_tokens.weight"]
    first, second = (state[part].flatten(0, 1) for part in ("exp_avg", "exp_avg_sq"))
    assert (first[row] == 0).all()
    carried = [at for at, column in enumerate(tokens.columns.tolist()) if column != tokens.in_dim and at != row]
    torch.testing.assert_close(second[row], second[carried].mean(dim=0))


def test_a_removed_feature_takes_its_rows_along(source, changed, warm):
    narrower = changed(features={"user_ctr": None})
    model, _, start = warm(narrower)
    assert start.report.removed == ["user_ctr"]
    assert all(name.startswith("ranker.") for name in start.report.anew)  # the token that it had alone, and the mixer
    old, new = source.model.ranker.ad_tokens, model.ranker.ad_tokens
    assert torch.equal(old.weight, new.weight)


def test_a_resized_table_starts_anew_with_the_features_that_read_it(source, changed, warm):
    resized = changed(tables={"tag": {"dim": 8, "buckets": 32}})
    model, _, start = warm(resized)
    assert start.report.anew == {
        "tags": "has another width, kind or table",
        "table tag": "has another width or other ids",
    }
    for table in ("ad", "country"):
        assert torch.equal(model.tables.weight(table), source.model.tables.weight(table))
    tokens, old = model.ranker.ad_tokens, source.model.ranker.ad_tokens
    for column in (*range(*_columns(resized, "ad", "ad_id")), _column(resized, "ad", "price")):
        name = "price" if column == _column(resized, "ad", "price") else "ad_id"
        place = column - _columns(resized, "ad", name)[0]
        before = old.weight.flatten(0, 1)[old.columns.tolist().index(_columns(source.schema, "ad", name)[0] + place)]
        assert torch.equal(tokens.weight.flatten(0, 1)[tokens.columns.tolist().index(column)], before)


def test_a_vocabulary_that_grew_keeps_its_values_rows(source, changed, warm):
    grown = changed(tables={"country": {"dim": 4, "vocabulary": ["AT", "日本", "DE"]}})
    model, _, start = warm(grown)
    assert start.report.anew == {"table country": "1 of 6 rows are of new values"}
    new, old = model.tables.weight("country"), source.model.tables.weight("country")
    assert torch.equal(new[[0, 1, 2, 4, 5]], old[[0, 1, 2, 4, 3]])
    accumulated = model.tables.optimizer_state()["country"]
    assert torch.equal(accumulated[[4, 5]], source.states.adagrad["country"][[4, 3]])
    assert accumulated[3] == 0


def test_a_field_of_a_sequence_that_is_new_starts_anew_alone(source, changed, warm):
    fields = {"ad": {"kind": "categorical", "table": "ad"}, "tag": {"kind": "categorical", "table": "tag"}}
    views = {"side": "query", "kind": "sequence", "max_length": 3, "fields": fields}
    model, _, start = warm(changed(features={"views": views}))
    assert start.report.anew == {"views.tag": "is new in its sequence, or its table is another one"}
    old, new = (m.ranker.events[1].project.weight for m in (source.model, model))
    assert torch.equal(new[:, :8], old)
    assert not torch.equal(new[:, 8:], torch.zeros_like(new[:, 8:]))


def test_a_new_sequence_leaves_the_others_theirs(source, changed, warm):
    """It is named before the others and shifts their numbers; tokens are added, so what counts tokens starts anew."""
    buys = {
        "side": "query",
        "kind": "sequence",
        "max_length": 3,
        "fields": {"ad": {"kind": "categorical", "table": "ad"}},
    }
    model, _, start = warm(changed(features={"buys": buys}))
    for at, old in enumerate(source.model.ranker.events):
        assert torch.equal(model.ranker.events[at + 1].project.weight, old.project.weight)
    assert any("mixer" in name and "shape" in reason for name, reason in start.report.anew.items())
    assert not any(f"<{name}>" in parameter for parameter in start.report.anew for name in ("clicks", "views"))


def test_features_stay_in_their_groups_and_new_ones_join_one(schema, changed):
    groups = {"query": {"profile": ("user_ctr",), "gone": ("left",)}, "ad": {"a": ("ad_id", "price"), "b": ("tags",)}}
    dense = {"side": "ad", "kind": "dense", "default": 0.0}
    other = changed(features={"size": {**dense, "label": "a"}, "weight": dense})
    assert continued_groups(other, groups) == {
        "query": {"profile": ("user_ctr", "country")},
        "ad": {"a": ("ad_id", "price", "size"), "b": ("tags", "weight")},
    }


@pytest.mark.parametrize(
    "sizes_of",
    [
        {"backbones": ("din_dcn",)},
        {"backbones": ("masknet",)},
        {"backbones": ("rankmixer",)},
        {"backbones": ("hyformer", "din_dcn"), "num_layers": 2, "sequence_encoder": "longer"},
        {"request_only": True, "members": 2},
        {"query_source": "one_token", "query_tokens": 1, "ad_tokens": 1, "queries_per_sequence": 1},
    ],
    ids=lambda sizes: "-".join(f"{name}={value}" for name, value in sizes.items()),
)
def test_every_backbone_starts_one_new_feature_anew_alone(schema, config, changed, sizes_of):
    source = _untrained(schema, config, **sizes_of)
    wider = changed(features={"hour": {"side": "query", "kind": "dense", "default": 3.0}})
    other = with_groups(wider, with_continued_groups(wider, warm_config(source), source))
    model = build_model(wider, other)
    report = carry(source, wider, other, model).report
    assert report.anew == {"hour": "is not in the source"}
    fresh = report.total["dense weights"] - report.carried["dense weights"]
    assert fresh == model.ranker.request_tokens.weight.shape[2]
    for name, parameter in dense_parameters(source.model).items():
        if "tokens" not in name:
            assert torch.equal(dense_parameters(model)[name], parameter)


def test_bins_of_a_new_value_start_anew_with_it(schema, config, changed):
    source = _untrained(schema, config, numeric_bins=4)
    wider = changed(features={"hour": {"side": "query", "kind": "dense", "default": 3.0}})
    other = with_groups(wider, with_continued_groups(wider, warm_config(source), source))
    report = carry(source, wider, other, build_model(wider, other)).report
    assert report.anew == {"hour": "is not in the source"}
    assert report.total["dense weights"] - report.carried["dense weights"] == (1 + 4) * config.model.token_dim


def test_the_command_says_what_it_carries(invoke, schema, log, run, tmp_path):
    save_schema(schema, tmp_path / "schema.yaml")
    words = ("--logs", log.requests.removesuffix("/requests"), "--schema", tmp_path / "schema.yaml")
    window = ("--from", "2026-03-01", "--until", "2026-03-04")
    warm = invoke("train", *words, *window, "--warm-start", run.path, "--out", tmp_path / "run")
    assert f"warm start from {run.path} (run-" in warm.stderr
    assert "carried over, with the optimisers' state" in warm.stderr
    assert warm.stderr.index("warm start from") < warm.stderr.index("Training the heavy ranker")
    trained = load_run(tmp_path / "run")
    assert trained.config.loop.epochs == 1
    assert trained.config.model == run.config.model


def test_a_bundle_gives_weights_alone(bundle, source, schema, config):
    sealed = open_source(bundle.path)
    assert sealed.states == OptimizerStates()
    other = with_groups(schema, config)
    start = carry(sealed, schema, other, build_model(schema, other))
    assert start.report.carried == start.report.total
    assert "without optimiser state" in start.report.text()


def test_a_run_that_begins_warm_goes_on_from_its_own_checkpoints(schema, log, config, source, run, tmp_path):
    short = msgspec.structs.replace(config, loop=msgspec.structs.replace(config.loop, epochs=1))
    trained = train_heavy(schema, log, tmp_path / "run", short, warm_start=source)
    assert trained.summary.warm_start.carried == trained.summary.warm_start.total
    assert trained.summary.history[0]["loss"] < run.summary.history[0]["loss"]
    again = train_heavy(schema, log, tmp_path / "run", short, warm_start=source)
    assert again.summary == trained.summary
    assert load_run(tmp_path / "run").summary == trained.summary
    with pytest.raises(InputError, match="holds checkpoints of a run with another configuration"):
        train_heavy(schema, log, tmp_path / "run", short)


def test_further_epochs_begin_with_the_tables_that_were_carried(schema, log, config, source, tmp_path):
    """With rates of zero they are the source's to the end."""
    loop = msgspec.structs.replace(config.loop, epochs=2, learning_rate=0.0, warmup_share=0.0)
    still = msgspec.structs.replace(config, loop=loop, fresh_tables=True, table_learning_rate=0.0)
    trained = train_heavy(schema, log, tmp_path / "run", still, warm_start=source)
    for name in source.model.tables.stack.tables:
        assert torch.equal(trained.model.tables.weight(name), source.model.tables.weight(name))


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(InputError, match=f"^no run or bundle at {re.escape(str(tmp_path / 'shopping'))}$"):
        open_source(tmp_path / "shopping")
    (tmp_path / "candidates").mkdir()
    with pytest.raises(InputError, match="^no run or bundle at .*, it holds a log$"):
        open_source(tmp_path)


def _untrained(schema, config, **sizes):
    """A source with fresh weights of another seed, as from a bundle."""
    model_config = msgspec.structs.replace(config.model, **sizes)
    config = with_groups(schema, msgspec.structs.replace(config, model=model_config))
    other_seed = msgspec.structs.replace(config, seed=99)
    return WarmSource("fresh", "fresh", schema, config, build_model(schema, other_seed), OptimizerStates())


def _best_step(run):
    state = checkpoint.latest(Path(run.path) / CHECKPOINTS).state(_Best)
    return state.best_step


class _Best(msgspec.Struct):
    best_step: int


def _columns(schema, side, feature):
    from contracts.layout import side_layout

    piece = next(piece for piece in side_layout(schema, side).flat(pool_sequences=False) if piece.name == feature)
    return piece.start, piece.start + piece.width


def _column(schema, side, feature):
    return _columns(schema, side, feature)[0]


def _with_hour(examples, schema):
    """The examples of the narrower schema with the float of the new feature, whatever it is, in its place."""
    from dataclasses import replace

    from contracts.encoding import Encoded
    from contracts.layout import side_layout

    place = next(column.start for column in side_layout(schema, "query").dense if column.name == "hour")
    floats = np.insert(np.asarray(examples.query.floats), place, 7.0, axis=1)
    return replace(examples, query=Encoded(examples.query.ids, floats))
