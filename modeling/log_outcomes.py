"""Labels that a log keeps apart from its candidates, found by request and ad row.

Shapes: M outcomes, B pairs, T tasks.
"""

import numpy as np

from contracts.errors import LogError
from contracts.records import REQUIRED_COLUMNS, AdsTimeline
from contracts.schema import FeatureSchema
from modeling.log_requests import Requests
from modeling.log_scan import scan
from modeling.log_values import numbers


class Outcomes:
    """Labels [M, T] by the pair's request row and the position of its ad row.

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
        keys, labels = [np.zeros(0, np.int64)], [np.zeros((0, len(columns)), np.float32)]
        required, pair = REQUIRED_COLUMNS["outcomes"], ("request_id", "ad_id")
        for _, table in scan(path, columns, required=required, title="Reading outcomes", filled=pair):
            request_row = requests.rows_of(table["request_id"])
            ad_position = timeline.rows_at(table["ad_id"], requests.join_time_of(request_row))
            known = (request_row >= 0) & (ad_position >= 0)
            keys.append(_keys(request_row, ad_position)[known])
            labels.append(np.column_stack([numbers(table, column, source=path) for column in columns])[known])
        unsorted = np.concatenate(keys)
        order = np.argsort(unsorted, kind="stable")
        self._keys, self._labels = unsorted[order], np.concatenate(labels)[order]
        if (np.diff(self._keys) == 0).any():
            row = int(self._keys[:-1][np.diff(self._keys) == 0][0] >> 32)
            request_id = next(text for text, position in requests.rows.items() if position == row)
            raise LogError(f"{path}: an ad of request_id {request_id!r} comes twice, expected one outcome a pair")

    def labels_of(self, request_row: np.ndarray, ad_position: np.ndarray) -> np.ndarray:
        """float32 [B, T], NaN where there is no outcome."""
        keys = _keys(request_row, ad_position)
        found = np.searchsorted(self._keys, keys)
        hit = found < len(self._keys)
        hit[hit] = self._keys[found[hit]] == keys[hit]
        labels = np.full((len(keys), self._labels.shape[1]), np.nan, np.float32)
        labels[hit] = self._labels[found[hit]]
        return labels


def _keys(request_row: np.ndarray, ad_position: np.ndarray) -> np.ndarray:
    return (request_row.astype(np.int64) << 32) | (ad_position.astype(np.int64) & 0xFFFFFFFF)
