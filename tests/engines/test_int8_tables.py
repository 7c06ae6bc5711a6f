"""Int8 rows are within half a step of the floats, and a quarter of their size."""

import numpy as np
import pytest

from engines.int8_tables import StoredTable, dequantise_table, merged, quantise_table

TABLE = np.random.default_rng(2).normal(size=(300, 32)).astype(np.float32) * np.logspace(-3, 2, 300)[:, None].astype(
    "f4"
)


def test_each_value_is_within_half_of_its_rows_step():
    values, scales = quantise_table(TABLE)
    assert (values.dtype, scales.dtype, values.shape, scales.shape) == (np.int8, np.float32, (300, 32), (300,))
    error = np.abs(dequantise_table(values, scales) - TABLE)
    assert (error <= scales[:, None] * 0.5001).all()
    assert (np.abs(values).max(axis=1) == 127).all()


def test_symmetric_and_zero_stays_zero():
    values, scales = quantise_table(TABLE)
    negated, same = quantise_table(-TABLE)
    np.testing.assert_array_equal(negated, -values)
    np.testing.assert_array_equal(same, scales)
    values, scales = quantise_table(np.zeros((2, 4), np.float32))
    assert not values.any()
    assert not scales.any()
    assert quantise_table(np.full((1, 2), 1e-45, np.float32))[0].tolist() == [[0, 0]]  # its scale is no float32


def test_a_table_without_rows_has_none():
    values, scales = quantise_table(np.zeros((0, 4), np.float32))
    assert (values.shape, scales.shape) == ((0, 4), (0,))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad):
    table = TABLE.copy()
    table[7, 3] = bad
    with pytest.raises(ValueError, match="row 7 of the table is not finite"):
        quantise_table(table)


def test_memory_is_a_quarter_and_a_scale():
    assert StoredTable(*quantise_table(TABLE)).nbytes == 300 * (32 + 4)
    assert StoredTable(TABLE).nbytes == 300 * 32 * 4


def test_merged_rows_are_the_tables_rows_but_for_padding():
    parts = [StoredTable(*quantise_table(TABLE[:40])), StoredTable(*quantise_table(TABLE[40:90]))]
    both = merged(parts)
    np.testing.assert_array_equal(
        both.take(np.array([1, 41])), [parts[0].take(np.array(1)), parts[1].take(np.array(1))]
    )
    assert not both.take(np.array([0, 40])).any()
    assert parts[0].take(np.array(0)).any()


def test_merged_rows_begin_with_a_cache_line():
    both = merged([StoredTable(TABLE[:40]), StoredTable(TABLE[40:90])])
    assert both.values.ctypes.data % 64 == 0
    np.testing.assert_array_equal(both.values[1:40], TABLE[1:40])
    np.testing.assert_array_equal(both.values[41:], TABLE[41:90])
    assert not both.values[[0, 40]].any()
