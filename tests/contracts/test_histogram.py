"""Coarse histograms equal counts by a loop."""

import numpy as np

from contracts.histogram import ID_BINS, ID_GROUPS, float_bins, id_bins, quantile_edges


def test_float_bins_equal_a_loop() -> None:
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(size=1000), 1).astype(np.float32)
    edges = quantile_edges(values)
    expected = np.zeros(len(edges) + 1, int)
    for value in values:
        expected[sum(value > edge for edge in edges)] += 1
    assert float_bins(values, edges).tolist() == expected.tolist()
    assert expected.sum() == 1000
    assert float_bins(values[:0], edges).tolist() == [0] * (len(edges) + 1)


def test_edges_are_distinct_values_even_where_most_are_equal() -> None:
    values = np.array([0.0] * 95 + [1.0, 2.0, 3.0, 4.0, 5.0])
    assert quantile_edges(values).tolist() == [0.0]
    assert float_bins(values, quantile_edges(values)).tolist() == [95, 5]


def test_id_bins_equal_a_loop() -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 100, (200, 4)).astype(np.int32)
    expected = np.zeros(ID_BINS, int)
    for value in ids.ravel().tolist():
        if value in (1, 2):
            expected[value - 1] += 1
        elif value:
            expected[2 + value % ID_GROUPS] += 1
    assert id_bins(ids).tolist() == expected.tolist()
    assert id_bins(ids[:0]).tolist() == [0] * ID_BINS
