"""What a simulated day leaves behind: requests, logged pairs and states of ads, as NumPy columns.

Shape letters: R requests, N logged pairs or states of ads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from adlogs.behaviour import Sequences
from adlogs.traffic import Traffic


@dataclass(frozen=True)
class CandidateRows:
    """Logged pairs in order of their requests, all arrays [N]; NaN is not known or not applicable."""

    request: np.ndarray  # row in the day's traffic
    ad: np.ndarray
    stage: np.ndarray
    bid: np.ndarray
    advertiser_clicks: np.ndarray
    position: np.ndarray  # 0: not shown
    click: np.ndarray
    conversion: np.ndarray
    weight: np.ndarray
    propensity: np.ndarray
    true_click: np.ndarray
    true_conversion: np.ndarray


@dataclass(frozen=True)
class AdRows:
    """States of ads from a moment on, all arrays [N]; NaN is not known."""

    ad: np.ndarray
    valid_from: np.ndarray  # int64, microseconds UTC
    active: np.ndarray  # bool
    bid: np.ndarray
    age_days: np.ndarray
    impressions: np.ndarray
    ctr: np.ndarray
    cvr: np.ndarray
    advertiser_ctr: np.ndarray


@dataclass(frozen=True)
class SimulatedDay:
    """What happened on one day. Request features are as of the request, arrays [R] in the order of `traffic`."""

    number: int
    start: int  # microseconds UTC
    traffic: Traffic
    activity: np.ndarray
    user_ctr: np.ndarray
    clicks: Sequences
    conversions: Sequences
    labels_as_of: int
    candidates: CandidateRows
    ads: AdRows
    bid_recalls: np.ndarray  # [fully logged requests]


Rows = TypeVar("Rows", CandidateRows, AdRows)


def concatenate(parts: Sequence[Rows]) -> Rows:
    """One set of rows out of several, in their order; at least one is given."""
    return type(parts[0])(*(np.concatenate([getattr(part, name) for part in parts]) for name in _columns(parts[0])))


def in_request_order(groups: Sequence[CandidateRows]) -> CandidateRows:
    """The pairs of several groups of requests, sorted by request; pairs of one request keep their order."""
    rows = concatenate(groups)
    order = np.argsort(rows.request, kind="stable")
    return CandidateRows(*(getattr(rows, name)[order] for name in _columns(rows)))


def _columns(rows: CandidateRows | AdRows) -> list[str]:
    return [field.name for field in fields(rows)]
