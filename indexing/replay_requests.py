"""Saved requests of a bundle, as callers would have sent them, read for a replay.

A request is a body of ``POST /rank``. What the service's default policies do with its candidates is done here: of a
repeated id the first one counts, and a bid that is negative or not finite drops the ad.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from contracts.bundle import Bundle
from contracts.errors import ArtifactError, RequestError
from contracts.rows import parse_time

REQUESTS_FILE = "requests.jsonl"


class _Body(msgspec.Struct):
    """The fields that a replay needs."""

    event_time: str | int
    query: dict[str, Any]
    scenario: str | None = None
    candidates: list[str] | dict[str, list[Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class SavedRequest:
    """One request. C candidates, distinct; ``bids`` float64 [C], NaN where it has none; ``pair`` has lists of C."""

    source: str
    query: dict[str, Any]
    event_time_us: int
    ids: list[str]
    bids: np.ndarray
    objectives: list[str | None] | None = None
    pair: dict[str, list[Any]] = field(default_factory=dict)


def saved_requests(bundle: Bundle, scenario: str) -> list[SavedRequest]:
    """The saved requests of a scenario that have candidates; none where the bundle keeps none.

    Raises:
        ArtifactError: A line is no request.
    """
    if REQUESTS_FILE not in bundle.manifest.files:
        return []
    requests = []
    for number, line in enumerate(bundle.file(REQUESTS_FILE).read_bytes().splitlines(), 1):
        if line.strip():
            source = f"{bundle.path / REQUESTS_FILE}: line {number}"
            request = read_request(line, source, scenario)
            requests += [] if request is None else [request]
    return requests


def read_request(line: bytes, source: str, scenario: str) -> SavedRequest | None:
    """One line; None where it is of another scenario or has no candidates. ``source`` is for messages."""
    try:
        body = msgspec.json.decode(line, type=_Body)
        event_time_us = parse_time(body.event_time, "event_time")
    except (msgspec.DecodeError, UnicodeDecodeError, RequestError) as error:
        raise ArtifactError(f"{source}: {error}") from error
    if body.scenario not in (None, scenario) or not body.candidates:
        return None
    given = {"ids": body.candidates} if isinstance(body.candidates, list) else body.candidates
    ids = given.get("ids", [])
    wrong = [name for name, values in given.items() if len(values) != len(ids)]
    if wrong or not all(isinstance(name, str) for name in ids):
        raise ArtifactError(f"{source}: candidates.{(wrong or ['ids'])[0]}: expected one value for each of the ids")
    first: dict[str, int] = {}
    for at, name in enumerate(ids):
        first.setdefault(name, at)
    columns = {name: [values[at] for at in first.values()] for name, values in given.items()}
    ids, bids, objectives = columns.pop("ids"), columns.pop("bids", None), columns.pop("objectives", None)
    return SavedRequest(
        source=source,
        query=body.query,
        event_time_us=event_time_us,
        ids=ids,
        bids=np.array([np.nan] * len(ids) if bids is None else bids, np.float64),
        objectives=objectives,
        pair=columns,
    )
