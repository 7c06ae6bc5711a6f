"""Look-ups, pooling and the fused optimiser, against one nn.Embedding a table and a loop over features."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from contracts.errors import ConfigError, MismatchError
from contracts.layout import SideLayout, side_layout
from contracts.schema import Feature, FeatureSchema, Pooling, Table
from engines.lookup import TableLookup
from modeling.tables import FeatureTables, dense_parameters

LEARNING_RATE, EPSILON = 0.1, 1e-8


def make_tables(schema: FeatureSchema, *, pool_sequences: bool, seed: int = 5) -> FeatureTables:
    return FeatureTables(
        schema, ("query", "ad", "pair"), pool_sequences=pool_sequences, learning_rate=LEARNING_RATE, seed=seed
    )


def random_rows(schema: FeatureSchema, side: str, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ids with empty and part-filled bags and sequences, left-aligned as the encoder writes them."""
    layout, generator = side_layout(schema, side), np.random.default_rng(seed)  # type: ignore[arg-type]
    tables = schema.all_tables()
    ids = np.zeros((rows, layout.num_ids), np.int32)
    for bag in layout.bags:
        drawn = generator.integers(1, tables[bag.table].num_rows, (rows, bag.width))
        lengths = generator.integers(0, bag.width + 1, rows) if bag.width > 1 else np.ones(rows)
        ids[:, bag.start : bag.start + bag.width] = drawn * (np.arange(bag.width) < lengths[:, None])
    for sequence in layout.sequences:
        lengths = generator.integers(0, sequence.max_length + 1, rows)
        for field in sequence.fields:
            drawn = generator.integers(1, tables[field.table].num_rows, (rows, field.width))
            ids[:, field.start : field.start + field.width] = drawn * (np.arange(field.width) < lengths[:, None])
    return torch.from_numpy(ids), torch.from_numpy(generator.normal(size=(rows, layout.num_floats)).astype(np.float32))


def all_sides(schema: FeatureSchema, seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    return {
        side: random_rows(schema, side, rows, seed + rows) for side, rows in (("query", 5), ("ad", 9), ("pair", 13))
    }


class PlainTables(nn.Module):
    """The reference: one nn.Embedding a table, one look-up a feature, the mean as a sum over a mask."""

    def __init__(self, tables: FeatureTables) -> None:
        super().__init__()
        weights = tables.export_tables()
        self.tables = nn.ModuleDict(
            {
                name.replace(".", "/"): nn.Embedding.from_pretrained(
                    torch.from_numpy(weights[f"tables.{name}"]), freeze=False, padding_idx=0
                )
                for name in tables.stack.tables
            }
        )

    def look_up(self, ids: Tensor, column: Any) -> tuple[Tensor, Tensor]:
        part = ids[:, column.start : column.start + column.width].long()
        return self.tables[column.table.replace(".", "/")](part), part != 0

    def flat(self, layout: SideLayout, ids: Tensor, floats: Tensor, *, pool_sequences: bool) -> Tensor:
        fields = [field for sequence in layout.sequences for field in sequence.fields] if pool_sequences else []
        parts = [floats]
        for column in (*layout.bags, *fields):
            found, present = self.look_up(ids, column)
            count = 1 if column.pooling == "sum" else present.sum(1, keepdim=True).clamp(min=1)
            parts.append((found * present[..., None]).sum(1) / count)
        return torch.cat(parts, dim=1)

    def events(self, layout: SideLayout, ids: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        found = {}
        for sequence in layout.sequences:
            pieces = [self.look_up(ids, field) for field in sequence.fields]
            mask = pieces[0][1]
            found[sequence.name] = (torch.cat([piece for piece, _ in pieces], dim=2) * mask[..., None], mask)
        return found


def loss_of(flats: list[Tensor], events: list[Tensor]) -> Tensor:
    """A loss in which every entry has a gradient of its own, in fixed directions."""
    total = torch.zeros(())
    for seed, tensor in enumerate(flats + events):
        total = total + (torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)) * tensor).sin().mean()
    return total


@pytest.mark.parametrize("pooling", ["mean", "sum"])
@pytest.mark.parametrize("pool_sequences", [True, False])
def test_look_ups_equal_plain_embeddings(small_schema: FeatureSchema, pool_sequences: bool, pooling: Pooling) -> None:
    topics = msgspec.structs.replace(small_schema.features["topics"], pooling=pooling)
    small_schema = msgspec.structs.replace(small_schema, features=small_schema.features | {"topics": topics})
    tables = make_tables(small_schema, pool_sequences=pool_sequences)
    plain, inputs = PlainTables(tables), all_sides(small_schema)
    for side, found in tables.forward_sides(inputs).items():
        layout = tables.layouts[side]
        expected = plain.flat(layout, *inputs[side], pool_sequences=pool_sequences)
        torch.testing.assert_close(found.flat, expected)
        assert found.flat.shape[1] == tables.flat_dim(side)
        events = {} if pool_sequences else plain.events(layout, inputs[side][0])
        assert found.sequences.keys() == events.keys()
        for name, (embeddings, mask) in events.items():
            torch.testing.assert_close(found.sequences[name][0], embeddings)
            assert torch.equal(found.sequences[name][1], mask)
        alone = tables(side, *inputs[side])
        assert torch.equal(alone.flat, found.flat)


@pytest.mark.parametrize("pool_sequences", [True, False])
def test_three_steps_equal_plain_embeddings_with_row_wise_adagrad(
    small_schema: FeatureSchema, pool_sequences: bool
) -> None:
    tables = make_tables(small_schema, pool_sequences=pool_sequences)
    plain = PlainTables(tables)
    accumulated = {name: torch.zeros(len(table.weight)) for name, table in plain.tables.items()}
    for step in range(3):
        inputs = all_sides(small_schema, seed=step)
        found = tables.forward_sides(inputs)
        loss_of(
            [f.flat for f in found.values()], [e for f in found.values() for e, _ in f.sequences.values()]
        ).backward()
        layouts = tables.layouts
        flats = [plain.flat(layouts[s], *rows, pool_sequences=pool_sequences) for s, rows in inputs.items()]
        events = (
            [] if pool_sequences else [e for s, r in inputs.items() for e, _ in plain.events(layouts[s], r[0]).values()]
        )
        plain.zero_grad()
        loss_of(flats, events).backward()
        with torch.no_grad():
            for name, table in plain.tables.items():
                gradient = table.weight.grad
                accumulated[name] += gradient.square().mean(1)
                table.weight -= LEARNING_RATE * gradient / (accumulated[name].sqrt() + EPSILON)[:, None]
    for name, table in plain.tables.items():
        torch.testing.assert_close(tables.weight(name.replace("/", ".")), table.weight.detach())
        torch.testing.assert_close(tables.optimizer_state()[name.replace("/", ".")], accumulated[name])


def test_serving_look_up_gives_the_same(small_schema: FeatureSchema) -> None:
    for pool_sequences in (True, False):
        tables = make_tables(small_schema, pool_sequences=pool_sequences)
        exported = tables.export_tables()
        for side, (ids, floats) in all_sides(small_schema).items():
            twin = TableLookup(tables.layouts[side], exported, pool_sequences=pool_sequences)
            with torch.no_grad():
                trained = tables(side, ids, floats)
            served = twin(ids.numpy(), floats.numpy())
            np.testing.assert_allclose(served.flat, trained.flat.numpy(), atol=1e-6)
            for name, (embeddings, mask) in trained.sequences.items():
                np.testing.assert_array_equal(served.sequences[name][0], embeddings.numpy())
                np.testing.assert_array_equal(served.sequences[name][1], mask.numpy())


def test_padding_and_rows_not_looked_up_never_train(small_schema: FeatureSchema) -> None:
    tables = make_tables(small_schema, pool_sequences=True)
    before, inputs = tables.export_tables(), all_sides(small_schema)
    found = tables.forward_sides(inputs)
    loss_of([side.flat for side in found.values()], []).backward()
    seen: dict[str, set[int]] = {name: set() for name in tables.stack.tables}
    for side, (ids, _) in inputs.items():
        layout = tables.layouts[side]
        for column in (*layout.bags, *(field for sequence in layout.sequences for field in sequence.fields)):
            seen[column.table] |= set(ids[:, column.start : column.start + column.width].flatten().tolist()) - {0}
    for name, rows in seen.items():
        after = tables.weight(name).numpy()
        changed = set(np.flatnonzero((after != before[f"tables.{name}"]).any(axis=1)).tolist())
        assert changed == rows
        assert not after[0].any()


def test_nothing_trains_without_gradients(small_schema: FeatureSchema) -> None:
    tables = make_tables(small_schema, pool_sequences=False)
    before = tables.export_tables()
    with torch.no_grad():
        tables.forward_sides(all_sides(small_schema))
    for name, weights in tables.export_tables().items():
        np.testing.assert_array_equal(weights, before[name])


def test_initial_weights_are_uniform_by_width_and_seeded(small_schema: FeatureSchema) -> None:
    tables = make_tables(small_schema, pool_sequences=True, seed=1)
    for name, table in tables.stack.tables.items():
        weights = tables.weight(name)[1:]
        bound = table.dim**-0.5
        assert weights.abs().max() <= bound
        assert weights.std() == pytest.approx(bound / 3**0.5, rel=0.25)
    again, other = (make_tables(small_schema, pool_sequences=True, seed=seed) for seed in (1, 2))
    assert torch.equal(again.weight("ad"), tables.weight("ad"))
    assert not torch.equal(other.weight("ad"), tables.weight("ad"))


def test_state_dict_and_exported_tables_round_trip(small_schema: FeatureSchema) -> None:
    source, target, imported = (make_tables(small_schema, pool_sequences=True, seed=seed) for seed in (1, 2, 3))
    inputs = all_sides(small_schema)
    target.load_state_dict(source.state_dict())
    imported.import_tables(source.export_tables())
    expected = source.forward_sides(inputs)["query"].flat
    assert torch.equal(target.forward_sides(inputs)["query"].flat, expected)
    assert torch.equal(imported.forward_sides(inputs)["query"].flat, expected)
    with pytest.raises(MismatchError, match=r"tables.ad: expected shape \(64, 8\), got \(3, 8\)"):
        imported.import_tables({"tables.ad": np.zeros((3, 8), np.float32)})


def test_reinitialised_tables_forget_their_optimiser(small_schema: FeatureSchema) -> None:
    tables = make_tables(small_schema, pool_sequences=True)
    found = tables.forward_sides(all_sides(small_schema))
    loss_of([side.flat for side in found.values()], []).backward()
    kept = tables.weight("topic").clone()
    assert tables.optimizer_state()["ad"].any()
    tables.reinitialise(["ad"], seed=9)
    assert not tables.optimizer_state()["ad"].any()
    assert tables.optimizer_state()["topic"].any()
    assert torch.equal(tables.weight("topic"), kept)


def test_the_learning_rate_scales(small_schema: FeatureSchema) -> None:
    inputs, moved = all_sides(small_schema), []
    for factor in (1.0, 0.25):
        tables = make_tables(small_schema, pool_sequences=True)
        before = tables.weight("ad").clone()
        tables.scale_learning_rate(factor)
        loss_of([tables.forward_sides(inputs)["ad"].flat], []).backward()
        moved.append(tables.weight("ad") - before)
    torch.testing.assert_close(moved[1], moved[0] * 0.25)


def test_dense_parameters_are_those_outside_the_tables(small_schema: FeatureSchema) -> None:
    model = nn.ModuleDict({"tables": make_tables(small_schema, pool_sequences=True), "head": nn.Linear(3, 1)})
    assert set(dense_parameters(model)) == {"head.weight", "head.bias"}


def test_what_cannot_be_looked_up_is_refused(small_schema: FeatureSchema) -> None:
    tables = make_tables(small_schema, pool_sequences=True)
    ids, floats = random_rows(small_schema, "ad", 4, seed=0)
    ids[2, 0] = 64
    with pytest.raises(MismatchError, match="ad: an id lies outside its table"):
        tables("ad", ids, floats)
    narrow = FeatureSchema(
        tasks=("click",),
        objectives={"click": "click"},
        tables={"country": Table(dim=6, buckets=8)},
        features={"country": Feature(side="query", kind="categorical", table="country")},
    )
    with pytest.raises(ConfigError, match=r"tables\.country\.dim must be a multiple of 4 to be trained, got 6"):
        FeatureTables(narrow, ("query",), pool_sequences=True, learning_rate=0.1)


def test_first_weights_fill_the_bound_of_their_width_or_of_their_rows(small_schema: FeatureSchema) -> None:
    for init in ("dim", "rows"):
        tables = FeatureTables(
            small_schema, ("query", "ad"), pool_sequences=True, learning_rate=LEARNING_RATE, init=init
        )
        for name, table in tables.stack.tables.items():
            bound = (table.dim if init == "dim" else table.num_rows) ** -0.5
            drawn = tables.weight(name)[1:].abs().max().item()
            assert 0.9 * bound < drawn <= bound
