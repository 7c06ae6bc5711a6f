"""What a request asks and brings: its columns, its encoded features, how many survivors it wants."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec

from contracts.config_errors import show
from contracts.encoding import Encoded
from contracts.errors import RequestError
from contracts.moments import is_told
from contracts.rows import encode_pairs
from service.api import RankRequest
from service.event_time import is_of_the_future, latest_event_us
from service.features import FeatureNotes, QueryEncoding, check_lengths, note_unknown
from service.heavies import LoadedHeavy
from service.heavy import HeavyInput
from service.releases import LoadedRelease
from service.request_ids import new_request_id
from service.settings import Settings
from service.wire import CandidateColumns, candidate_columns

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class RequestInputs(msgspec.Struct, frozen=True, kw_only=True):
    """A request ready for the models.

    Args:
        request_id: Its own, or one made for it.
        columns: Its candidates; None where ads are to be retrieved.
        num_survivors: Ads for the heavy ranker.
        event_time_us: Microseconds since 1970 UTC.
        notes: What was found about its features.
        queries: One row for the query tower of each release.
        heavy: By version of the heavy ranker; empty where the light stage alone is asked.
    """

    request_id: str
    columns: CandidateColumns | None
    num_survivors: int
    event_time_us: int
    notes: FeatureNotes
    queries: list[Encoded]
    heavy: dict[str, HeavyInput]


def request_inputs(request: RankRequest, releases: Sequence[LoadedRelease], settings: Settings) -> RequestInputs:
    """Check and encode a request for the releases that are to rank it.

    Raises:
        RequestError: A field has a wrong value, or a policy refuses the request; all bad features are found here.
    """
    columns = None
    if request.candidates is not None:
        columns = candidate_columns(request.candidates, max_candidates=settings.max_candidates)
    num_survivors = _num_survivors(request, settings)
    notes = FeatureNotes(note_unknown(request.query, columns.pair if columns else {}, releases, settings))
    check_lengths(request.query, settings.max_list_length)
    event_time_us = _event_time_us(request.event_time)
    encoding = QueryEncoding(query=request.query, event_time_us=event_time_us, notes=notes, settings=settings)
    try:
        queries, heavy = _encoded(request, encoding, releases, columns)
    except RequestError as error:
        if request.event_time is not None or not is_of_the_future(error):
            raise
        # This host's clock is behind that of whoever saw the events: no reason that an auction fails.
        event_time_us = latest_event_us(request.query, releases)
        notes.late_s = (event_time_us - encoding.event_time_us) / 1e6
        encoding = replace(encoding, event_time_us=event_time_us)
        queries, heavy = _encoded(request, encoding, releases, columns)
    return RequestInputs(
        request_id=new_request_id() if request.request_id is None else request.request_id,
        columns=columns,
        num_survivors=num_survivors,
        event_time_us=event_time_us,
        notes=notes,
        queries=queries,
        heavy=heavy,
    )


def _encoded(
    request: RankRequest,
    encoding: QueryEncoding,
    releases: Sequence[LoadedRelease],
    columns: CandidateColumns | None,
) -> tuple[list[Encoded], dict[str, HeavyInput]]:
    """Rows for the towers of each release, and for each heavy ranker."""
    queries = [encoding.encode(loaded.tower.query_rows, loaded.release.two_tower) for loaded in releases]
    heavies: dict[str, LoadedHeavy] = {}
    if request.stage == "full":
        heavies = {loaded.heavy.version: loaded.heavy for loaded in releases if loaded.heavy is not None}
    return queries, {version: _heavy_input(heavy, encoding, columns) for version, heavy in heavies.items()}


def _num_survivors(request: RankRequest, settings: Settings) -> int:
    survivors_wanted = request.survivors or settings.survivors
    if survivors_wanted > settings.max_survivors:
        raise RequestError(f"at most {settings.max_survivors:,}, got {survivors_wanted:,}", field="survivors")
    return survivors_wanted


def _heavy_input(heavy: LoadedHeavy, encoding: QueryEncoding, columns: CandidateColumns | None) -> HeavyInput:
    encoders, pair = heavy.encoders, None
    if columns is not None and columns.pair and encoders.pair_encoder is not None:
        pair = encode_pairs(encoders.pair_encoder, columns.pair, len(columns.ids)).encoded
    return HeavyInput(heavy=heavy, query=encoding.encode(encoders.query_rows, heavy.version), pair=pair)


def _event_time_us(event_time: datetime | None) -> int:
    """Microseconds since 1970 UTC of a moment, or of now; a zone can lead out of the years that logs can tell."""
    micros = ((event_time or datetime.now(UTC)) - EPOCH) // MICROSECOND
    if not is_told(micros):
        raise RequestError(
            f"expected a time of the years 1 to 9999 UTC, got {show(str(event_time))}", field="event_time"
        )
    return micros
