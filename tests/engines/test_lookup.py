"""Look-up and pooling equal a plain loop over rows and features."""

import numpy as np
import pytest

from contracts import compiled
from contracts.errors import MismatchError
from contracts.layout import SideLayout, side_layout
from contracts.schema import Feature, FeatureSchema, SequenceField, Table
from engines import lookup
from engines.int8_tables import dequantise_table, quantise_table
from engines.lookup import TableLookup


def make_schema() -> FeatureSchema:
    """Two widths, a table shared by a bag and a history, a bag of several ids, two histories, floats."""
    return FeatureSchema(
        tasks=["click"],
        objectives={"click": "click"},
        tables={
            "video": Table(dim=4, buckets=50),
            "tag": Table(dim=2, buckets=20),
            "country": Table(dim=4, buckets=12),
        },
        features={
            "country": Feature(side="query", kind="categorical", table="country"),
            "liked": Feature(side="query", kind="multi_categorical", table="tag", max_length=3),
            "seen": Feature(side="query", kind="multi_categorical", table="tag", max_length=3, pooling="sum"),
            "tagged": Feature(side="query", kind="multi_categorical", table="tag", max_length=3),
            "last": Feature(side="query", kind="categorical", table="video"),
            "age": Feature(side="query", kind="dense", default=0.0),
            "taste": Feature(side="query", kind="embedding", length=3),
            "watch": Feature(
                side="query",
                kind="sequence",
                max_length=5,
                fields={
                    "video": SequenceField(kind="categorical", table="video"),
                    "tag": SequenceField(kind="categorical", table="tag"),
                },
            ),
            "search": Feature(
                side="query",
                kind="sequence",
                max_length=1,
                fields={"country": SequenceField(kind="categorical", table="country")},
            ),
        },
    )


@pytest.fixture
def layout() -> SideLayout:
    return side_layout(make_schema(), "query")


@pytest.fixture
def tables() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    schema = make_schema()
    return {
        f"tables.{name}": rng.normal(size=(table.num_rows, table.dim)).astype(np.float32)
        for name, table in schema.all_tables().items()
    }


def random_rows(layout: SideLayout, rows: int, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Valid ids and floats; about a fifth of the bags and histories are empty."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((rows, layout.num_ids), np.int32)
    for column in layout.bags:
        lengths = rng.integers(0, column.width + 1, rows)
        for row, length in enumerate(lengths):
            ids[row, column.start : column.start + length] = rng.integers(1, 12, length)
    for sequence in layout.sequences:
        lengths = np.where(rng.random(rows) < 0.2, 0, rng.integers(1, sequence.max_length + 1, rows))
        for field in sequence.fields:
            for row, length in enumerate(lengths):
                ids[row, field.start : field.start + length] = rng.integers(1, 12, length)
    return ids, rng.normal(size=(rows, layout.num_floats)).astype(np.float32)


def plain(layout: SideLayout, tables: dict, ids: np.ndarray, floats: np.ndarray, pool_sequences: bool):
    """The definition, one row and one feature at a time."""
    flats, sequences = [], {sequence.name: ([], []) for sequence in layout.sequences}
    for row in range(len(ids)):
        pieces = [floats[row]]
        columns = list(layout.bags)
        if pool_sequences:
            columns += [field for sequence in layout.sequences for field in sequence.fields]
        for column in columns:
            table = tables[f"tables.{column.table}"]
            picked = [table[i] for i in ids[row, column.start : column.start + column.width] if i != 0]
            pool = np.sum if column.pooling == "sum" else np.mean
            pieces.append(pool(picked, axis=0) if picked else np.zeros(column.dim, np.float32))
        flats.append(np.concatenate(pieces))
        for sequence in layout.sequences:
            embeddings, mask = sequences[sequence.name]
            events = []
            for position in range(sequence.max_length):
                event_ids = [ids[row, field.start + position] for field in sequence.fields]
                events.append(
                    np.concatenate(
                        [
                            tables[f"tables.{field.table}"][i] if i else np.zeros(field.dim, np.float32)
                            for field, i in zip(sequence.fields, event_ids, strict=True)
                        ]
                    )
                )
            embeddings.append(events)
            mask.append([ids[row, sequence.fields[0].start + p] != 0 for p in range(sequence.max_length)])
    return np.array(flats), {name: (np.array(e), np.array(m)) for name, (e, m) in sequences.items()}


@pytest.mark.parametrize("pool_sequences", [False, True])
@pytest.mark.parametrize("merge_limit", [0, 300, 1 << 20], ids=["mapped", "mixed", "merged"])
@pytest.mark.parametrize("rows", [1, 17])
def test_equals_a_plain_loop(layout, tables, monkeypatch, pool_sequences, merge_limit, rows):
    monkeypatch.setattr(lookup, "MERGE_LIMIT_BYTES", merge_limit)
    ids, floats = random_rows(layout, rows)
    looked_up = TableLookup(layout, tables, pool_sequences=pool_sequences)(ids, floats)
    flat, sequences = plain(layout, tables, ids, floats, pool_sequences)
    np.testing.assert_allclose(looked_up.flat, flat, atol=1e-6)
    assert looked_up.flat.dtype == np.float32
    assert looked_up.sequences.keys() == sequences.keys()
    for name, (embeddings, mask) in sequences.items():
        np.testing.assert_array_equal(looked_up.sequences[name][0], embeddings)
        np.testing.assert_array_equal(looked_up.sequences[name][1], mask)


@pytest.mark.parametrize("merge_limit", [0, 300, 1 << 20], ids=["mapped", "mixed", "merged"])
def test_a_compiled_loop_pools_the_same_bits_where_no_events_are_kept(layout, tables, monkeypatch, merge_limit):
    pytest.importorskip("numba")
    monkeypatch.setattr(lookup, "MERGE_LIMIT_BYTES", merge_limit)
    ids, floats = random_rows(layout, 17)
    call = TableLookup(layout, tables, pool_sequences=True, keep_events=False)
    assert compiled.prepare()
    found = call(ids, floats)
    outside = ids.copy()
    outside[3, layout.bags[0].start] = 50
    with pytest.raises(MismatchError, match=layout.bags[0].name):
        call(outside, floats)
    monkeypatch.setattr(compiled, "_loaded", None)
    np.testing.assert_array_equal(found.flat, call(ids, floats).flat)
    np.testing.assert_allclose(found.flat, plain(layout, tables, ids, floats, True)[0], atol=1e-6)
    assert found.sequences == {}


@pytest.mark.parametrize("few_events", [2, 3, 100])
def test_many_rows_are_pooled_bit_for_bit_as_few_are(layout, tables, monkeypatch, few_events):
    ids, floats = random_rows(layout, 40)
    call = TableLookup(layout, tables, pool_sequences=True)
    few = call(ids, floats).flat
    monkeypatch.setattr(lookup, "MANY_ROWS", 1)
    monkeypatch.setattr(lookup, "FEW_EVENTS", few_events)
    np.testing.assert_array_equal(call(ids, floats).flat, few)


def test_no_rows_give_no_rows(layout, tables):
    looked_up = TableLookup(layout, tables, pool_sequences=True)(
        np.zeros((0, layout.num_ids), np.int32), np.zeros((0, layout.num_floats), np.float32)
    )
    assert looked_up.flat.shape == (0, layout.flat_dim(True))
    assert looked_up.sequences["watch"][0].shape == (0, 5, 6)


def test_flat_order_is_the_layouts(layout, tables):
    """Each float slice of the flat input is the encoded float, and no position is left unwritten."""
    ids, floats = random_rows(layout, 9)
    flat = TableLookup(layout, tables, pool_sequences=True)(ids, floats).flat
    for piece, column in zip(layout.flat(True), layout.dense, strict=False):
        np.testing.assert_array_equal(
            flat[:, piece.start : piece.start + piece.width], floats[:, column.start : column.start + column.width]
        )
    assert np.isfinite(flat).all()


@pytest.mark.parametrize("bad", [-1, 53, 2**31 - 1])
def test_an_id_outside_its_table_never_reads_a_neighbour(layout, tables, bad):
    ids, floats = random_rows(layout, 3)
    column = next(column for column in layout.bags if column.name == "last")
    ids[1, column.start] = bad
    with pytest.raises(MismatchError, match=rf"feature last: id {bad} is outside its table of \d+ rows"):
        TableLookup(layout, tables, pool_sequences=True)(ids, floats)


def test_missing_and_misshapen_tables_are_named(layout, tables):
    with pytest.raises(MismatchError, match=r"no tables\.video"):
        TableLookup(layout, {k: v for k, v in tables.items() if k != "tables.video"}, pool_sequences=True)
    with pytest.raises(MismatchError, match=r"tables\.tag has shape .* expects width 2"):
        TableLookup(layout, tables | {"tables.tag": np.zeros((20, 3), np.float32)}, pool_sequences=True)


def test_merging_copies_and_leaves_the_mapped_weights_alone(layout, tables):
    before = {name: table.copy() for name, table in tables.items()}
    for table in tables.values():
        table.flags.writeable = False
    TableLookup(layout, tables, pool_sequences=True)(*random_rows(layout, 4))
    for name, table in tables.items():
        np.testing.assert_array_equal(table, before[name])


def quantised(tables: dict[str, np.ndarray], names: set[str]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Tables with those of ``names`` in int8, and the float tables that they stand for."""
    stored, stands_for = dict(tables), dict(tables)
    for name in names:
        values, scales = quantise_table(tables[name])
        stored |= {name: values, f"{name}.scale": scales}
        stands_for[name] = dequantise_table(values, scales)
    return stored, stands_for


@pytest.mark.parametrize("pool_sequences", [False, True])
@pytest.mark.parametrize("merge_limit", [0, 300, 1 << 20], ids=["mapped", "mixed", "merged"])
@pytest.mark.parametrize("names", [{"tables.video"}, {"tables.video", "tables.tag", "tables.country"}], ids=len)
def test_int8_tables_equal_the_floats_they_stand_for(layout, tables, monkeypatch, pool_sequences, merge_limit, names):
    monkeypatch.setattr(lookup, "MERGE_LIMIT_BYTES", merge_limit)
    stored, stands_for = quantised(tables, names)
    rows = random_rows(layout, 17)
    computed = TableLookup(layout, stored, pool_sequences=pool_sequences)(*rows)
    expected = TableLookup(layout, stands_for, pool_sequences=pool_sequences)(*rows)
    np.testing.assert_array_equal(computed.flat, expected.flat)
    for name, (embeddings, _) in expected.sequences.items():
        np.testing.assert_array_equal(computed.sequences[name][0], embeddings)


def test_int8_without_its_scales_is_named(layout, tables):
    stored, _ = quantised(tables, {"tables.video"})
    with pytest.raises(MismatchError, match=r"tables\.video is int8 and needs tables\.video\.scale .*, got none"):
        TableLookup(layout, {k: v for k, v in stored.items() if k != "tables.video.scale"}, pool_sequences=True)
    stored["tables.video.scale"] = stored["tables.video.scale"][:-1]
    with pytest.raises(MismatchError, match=r"needs tables\.video\.scale float32 \[50\], got float32 \[49\]"):
        TableLookup(layout, stored, pool_sequences=True)


@pytest.mark.parametrize("rows", [0, 1, 17])
def test_sequences_are_cut_to_a_bucket_that_holds_the_longest(layout, tables, rows):
    ids, floats = random_rows(layout, rows)
    watch = next(sequence for sequence in layout.sequences if sequence.name == "watch")
    for field in watch.fields:
        ids[:, field.start + 3 : field.start + field.width] = 0  # at most 3 of 5 events
    whole = TableLookup(layout, tables, pool_sequences=True)(ids, floats)
    for buckets, length in (((1, 3, 9), 3), ((1, 4), 4), ((1,), 5), ((8,), 5)):
        cut = TableLookup(layout, tables, pool_sequences=True, length_buckets=buckets)(ids, floats)
        np.testing.assert_array_equal(cut.flat, whole.flat)
        embeddings, mask = cut.sequences["watch"]
        if rows == 17:
            assert embeddings.shape == (rows, length, 6)
        np.testing.assert_array_equal(embeddings, whole.sequences["watch"][0][:, : embeddings.shape[1]])
        np.testing.assert_array_equal(mask, whole.sequences["watch"][1][:, : embeddings.shape[1]])
        assert cut.sequences["search"][0].shape == (rows, 1, 4)
