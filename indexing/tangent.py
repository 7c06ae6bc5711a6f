"""Steers the search of an index towards what utility really is, by a tangent.

An index searches for the largest ``log bid + w logit``, but utility orders by ``log bid + log sigmoid(logit)``, which
bends where probabilities are not small. The tangent to ``log sigmoid`` at ``x`` has slope ``w = 1 - sigmoid(x)`` and
lies above the curve everywhere, so that near ``x`` the search orders as utility does. ``x`` is where the best ads of
this query are: a sample of the index, scored exactly, tells for each head. The caller takes more than it needs and
ranks it by exact utility.

Shapes: S ads of the sample, A ads of the index, H heads, D width of a head's vector.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from contracts.probability import sigmoid
from contracts.utility import top_positions
from indexing.index import Pins
from towers.serving import score

SAMPLE_SIZE = 2048
MIN_BEST = 16
MIN_SLOPE = 1e-3
SEED = 0
_PART = 1 << 18


@dataclass(frozen=True)
class Tangents:
    """What a sample of the ads that may be found tells about where the best ones are.

    Args:
        pins: [S, ...], of fp32: a request converts nothing.
        heads: The head that each ad's objective pays for, H for the impression, int [S].
        bids: Usable ones [S].
        num_ads: How many ads the sample stands for.
    """

    pins: Pins
    heads: np.ndarray
    bids: np.ndarray
    num_ads: int

    @classmethod
    def of(cls, pins: Pins, heads: np.ndarray, bids: np.ndarray, num_ads: int) -> "Tangents":
        """From pins of any precision, and bids of which NaN counts as 1."""
        usable = np.where(np.isnan(bids), 1.0, np.clip(bids.astype(np.float64), 0, np.finfo(np.float32).max))
        exact = Pins(pins.vectors.astype(np.float32), pins.bias, pins.scales)
        return cls(exact, heads, usable, num_ads)

    def __call__(
        self, query_embedding: np.ndarray, num_wanted: int, num_allowed: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slope and offset of each head's tangent, float32 [H].

        Args:
            query_embedding: [H, D+2].
            num_wanted: How many of the best ads are asked for.
            num_allowed: Of how many that may be found; None is all that the sample stands for.
        """
        pins = self.pins
        logits = score(query_embedding, pins.vectors, pins.bias, pins.scales).astype(np.float64)
        num_heads = logits.shape[1]
        paid = np.flatnonzero(self.heads < num_heads)
        utilities = self.bids.copy()
        utilities[paid] *= sigmoid(logits[paid, self.heads[paid]])
        share = min(num_wanted / max(self.num_ads if num_allowed is None else num_allowed, 1), 1.0)
        best = top_positions(utilities, max(MIN_BEST, round(share * len(utilities))))
        touch = np.array([_touch(logits[:, head], self.heads == head, best) for head in range(num_heads)])
        return tangents_at(touch)


def tangents_at(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and offsets of the tangents to ``log sigmoid`` at these logits, float32 [H] both."""
    slopes = np.maximum(1 - sigmoid(logits), MIN_SLOPE)
    return slopes.astype(np.float32), (-np.logaddexp(0, -logits) - slopes * logits).astype(np.float32)


def steered(query_embedding: np.ndarray, slopes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The query embedding [H, D+2] to search an index with, the weights of its heads being ``slopes``."""
    asked = np.array(query_embedding)
    asked[:, -1] += offsets / slopes  # the search adds slope times this bias to every score of the head
    return asked


def sample_rows(usable: Callable[[Any], np.ndarray], num_rows: int) -> tuple[np.ndarray, int]:
    """Some usable rows of an index, ascending, always the same ones; and how many are usable.

    Args:
        usable: Which rows of a part are, bool.

    Example:
        >>> sample_rows(lambda part: np.array([True, False, True])[part], 3)
        (array([0, 2]), 2)
    """
    parts = [slice(start, min(start + _PART, num_rows)) for start in range(0, num_rows, _PART)]
    ends = np.cumsum([np.count_nonzero(usable(part)) for part in parts], dtype=np.int64)
    count = int(ends[-1]) if parts else 0
    places = np.arange(count)
    if count > SAMPLE_SIZE:
        places = np.sort(np.random.default_rng(SEED).choice(count, SAMPLE_SIZE, replace=False))
    of_part = np.searchsorted(ends, places, side="right")
    rows = [
        np.flatnonzero(usable(parts[at]))[places[of_part == at] - ends[at]] + parts[at].start
        for at in np.unique(of_part)
    ]
    return np.concatenate(rows) if rows else places, count


def _touch(logits: np.ndarray, is_member: np.ndarray, best: np.ndarray) -> float:
    """The mean logit of the best ads that pay for a head, else of its own best one, else what makes the slope 1."""
    among_best = best[is_member[best]]
    if len(among_best):
        return float(logits[among_best].mean())
    return float(logits[is_member].max()) if is_member.any() else -20.0
