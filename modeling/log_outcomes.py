"""What became of ads, where a log keeps it apart from its candidates: found by request and ad row.

Shapes: M outcomes, B pairs, T tasks.
"""

import numpy as np
import pyarrow.compute as pc

from contracts.errors import LogError
from contracts.records import REQUIRED_COLUMNS
from contracts.schema import FeatureSchema
from contracts.timeline import AdsTimeline
from modeling.log_requests import Requests
from modeling.log_scan import scan
from modeling.log_values import numbers


class Outcomes:
    """Outcomes by the pair's request row and the position of its ad row.

    The arrays hold one row more than there are outcomes, so that row -1 tells of a pair without one: ``labels`` float32
    [M + 1, T], NaN where unknown, and ``shown`` bool [M + 1].

    Args:
        schema: Names the tasks.
        path: Of ``outcomes/``.
        requests: Those that were read; outcomes of others are left out.
        timeline: Of ``ads/``.

    Raises:
        LogError: A pair has two outcomes, or a column is absent or of the wrong type.
    """

    def __init__(self, schema: FeatureSchema, path: str, requests: Requests, timeline: AdsTimeline) -> None:
        columns = [f"label_{task}" for task in schema.tasks]
        keys, labels, shown = [np.zeros(0, np.int64)], [np.zeros((0, len(columns)), np.float32)], [np.zeros(0, bool)]
        required, pair = REQUIRED_COLUMNS["outcomes"], ("request_id", "ad_id")
        for _, table in scan(path, columns, required=required, title="Reading outcomes", filled=pair):
            request_row = requests.rows_of(table["request_id"])
            ad_position = timeline.rows_at(table["ad_id"], requests.join_time_of(request_row))
            kept = (request_row >= 0) & (ad_position >= 0)
            keys.append(_keys(request_row, ad_position)[kept])
            labels.append(np.column_stack([numbers(table, column, source=path) for column in columns])[kept])
            shown.append(np.asarray(pc.fill_null(table["shown"], False))[kept])
        unsorted = np.concatenate(keys)
        order = np.argsort(unsorted, kind="stable")
        self._keys = unsorted[order]
        unknown = np.full((1, len(columns)), np.nan, np.float32)
        self.labels = np.concatenate([np.concatenate(labels)[order], unknown])
        self.shown = np.append(np.concatenate(shown)[order], False)
        if (np.diff(self._keys) == 0).any():
            row = int(self._keys[:-1][np.diff(self._keys) == 0][0] >> 32)
            request_id = next(text for text, position in requests.rows.items() if position == row)
            raise LogError(f"{path}: an ad of request_id {request_id!r} comes twice, expected one outcome a pair")

    def rows_of(self, request_row: np.ndarray, ad_position: np.ndarray) -> np.ndarray:
        """int64 [B], the outcome of each pair, -1 where there is none, as where a row or position is -1."""
        keys = _keys(request_row, ad_position)
        found = np.searchsorted(self._keys, keys)
        hit = found < len(self._keys)
        hit[hit] = self._keys[found[hit]] == keys[hit]
        return np.where(hit, found, -1)


def _keys(request_row: np.ndarray, ad_position: np.ndarray) -> np.ndarray:
    return (request_row.astype(np.int64) << 32) | (ad_position.astype(np.int64) & 0xFFFFFFFF)
