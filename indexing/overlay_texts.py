"""What one reader knows of the texts in an overlay: ids to rows, and numbers for the advertisers.

Shapes: O rows of the overlay.
"""

from collections.abc import Sequence

import numpy as np


class OverlayTexts:
    """Ids and advertisers of the overlay's rows, in the order of the rows; grows as they come."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        """The newest of the overlay's rows of each id."""
        self.advertisers = np.zeros(0, np.int32)
        self._numbers: dict[str, int] = {}

    def add(self, texts: Sequence[tuple[str, str | None]]) -> None:
        """Append id and advertiser of the next rows."""
        numbers = [-1 if name is None else self._numbers.setdefault(name, len(self._numbers)) for _, name in texts]
        self.advertisers = np.concatenate([self.advertisers, np.array(numbers, np.int32)])
        first = len(self.ids)
        self.rows.update((ad_id, first + place) for place, (ad_id, _) in enumerate(texts))
        self.ids.extend(ad_id for ad_id, _ in texts)

    def codes(self, advertisers: Sequence[str]) -> np.ndarray:
        """Numbers of those advertisers that any row has, int32."""
        found = (self._numbers.get(name) for name in advertisers)
        return np.array([number for number in found if number is not None], np.int32)
