"""Coarse histograms of encoded values: a model's profile keeps one of each feature, later data is counted alike.

Floats fall between edges that the training data had evenly many values between; ids into groups by their remainder,
since a table may have millions of rows. Missing and out-of-vocabulary ids have a group of their own each.
"""

import numpy as np

from contracts.schema import MISSING, OUT_OF_VOCABULARY

EDGES = 9
"""At most so many edges: the deciles."""
ID_GROUPS = 32
ID_BINS = 2 + ID_GROUPS
"""Missing, out of vocabulary, then one bin a remainder."""


def quantile_edges(values: np.ndarray) -> np.ndarray:
    """The distinct deciles of ``values`` [n], rising; each is one of the values.

    Example:
        >>> quantile_edges(np.array([0.0, 0.0, 0.0, 1.0, 2.0])).tolist()
        [0.0, 1.0]
    """
    levels = np.arange(1, EDGES + 1) / (EDGES + 1)
    return np.unique(np.quantile(values, levels, method="lower")).astype(np.float64)


def float_bins(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """How many values lie at or below the first edge, between two edges, above the last: int64 [edges + 1].

    Example:
        >>> float_bins(np.array([0.0, 0.5, 1.0, 7.0]), np.array([0.5, 1.0])).tolist()
        [2, 1, 1]
    """
    rounded = edges.astype(values.dtype)  # comparing in the type of the values spares a conversion of them all
    below = np.where(rounded > edges, np.nextafter(rounded, -np.inf, dtype=values.dtype), rounded)
    at_or_below = [np.count_nonzero(values <= edge) for edge in below]  # for few edges faster than a search
    return np.diff([0, *at_or_below, len(values)])


def id_bins(ids: np.ndarray) -> np.ndarray:
    """How many ids are missing, out of vocabulary, or of each remainder: int64 [``ID_BINS``]. Padding is not counted.

    Example:
        >>> id_bins(np.array([[0, 1], [3, 35]]))[:7].tolist()
        [1, 0, 0, 0, 0, 2, 0]
    """
    flat = ids.ravel()
    by_remainder = np.bincount((flat & (ID_GROUPS - 1)).astype(np.intp), minlength=ID_GROUPS)
    reserved = np.array([np.count_nonzero(flat == kind) for kind in range(OUT_OF_VOCABULARY + 1)])
    by_remainder[: OUT_OF_VOCABULARY + 1] -= reserved
    return np.r_[reserved[MISSING], reserved[OUT_OF_VOCABULARY], by_remainder]
