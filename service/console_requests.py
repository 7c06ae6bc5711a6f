"""Requests that the serving bundles hold, for the console to rank."""

import msgspec

from contracts.errors import AdsieveError
from indexing.id_texts import IdTexts
from service.api import RankRequest
from service.console_api import SavedRequest, SavedRequests
from service.problems import HttpProblem
from service.releases import Snapshot
from service.wire import decode_request

MAX_LISTED = 100
"""Saved requests of a scenario that are listed."""


def saved_requests(snapshot: Snapshot) -> SavedRequests:
    """The first of each scenario, in the order of the bundle; those that a service could not read are left out."""
    found = []
    for scenario, loaded in snapshot.releases.items():
        for number, line in enumerate(loaded.warm_up_requests[:MAX_LISTED], 1):
            try:
                request = decode_request(line)
            except AdsieveError:
                continue
            found.append(_told(scenario, number, request))
    return SavedRequests(requests=found)


def saved_request(snapshot: Snapshot, scenario: str, number: str) -> bytes:
    """One of them, as JSON; ``number`` is decimal and counts from 1.

    Raises:
        HttpProblem: 404, there is none.
    """
    loaded = snapshot.releases.get(scenario)
    saved = loaded.warm_up_requests if loaded else ()
    place = int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0
    if not 1 <= place <= len(saved):
        raise HttpProblem(404, "http", f"scenario {scenario!r} has no saved request {number}")
    return bytes(msgspec.json.format(saved[place - 1], indent=1))


def _told(scenario: str, number: int, request: RankRequest) -> SavedRequest:
    columns = request.candidates
    ids = columns.get("ids") if isinstance(columns, dict) else columns
    return SavedRequest(
        scenario=scenario,
        number=number,
        request_id=request.request_id,
        candidates=len(ids) if isinstance(ids, list | IdTexts) else None,
    )
