"""What /rank and /rank/batch take and answer. Candidates and ads are columns, never one object each."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

MAX_TIMEOUT_MS = 600_000.0
MAX_REQUEST_ID = 256
"""Characters."""

_COLUMNS_SCHEMA = {
    "description": "Ad ids, or columns of equal length: ids, and optionally bids, objectives and pair features.",
    "anyOf": [
        {"type": "array", "items": {"type": "string"}},
        {
            "type": "object",
            "required": ["ids"],
            "properties": {
                "ids": {"type": "array", "items": {"type": "string"}},
                "bids": {"type": "array", "items": {"type": ["number", "null"]}},
                "objectives": {"type": "array", "items": {"type": ["string", "null"]}},
            },
            "additionalProperties": {"type": "array"},
        },
        {"type": "null"},
    ],
}


Stage = Literal["dropped", "light", "survivor", "answer"]


class Filters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Ads of these advertisers are left out, with or without candidates."""

    exclude_advertisers: list[str] = []


class RankRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request to rank ads.

    ``scenario`` names a scenario of the store, or ``auto``: each candidate by the model of its own scenario. ``query``
    maps feature names to values; a history maps its fields to lists of equal length, oldest event first. Without
    ``candidates`` the index is searched. ``event_time`` (RFC 3339 with a zone) is the moment that ages are taken
    against, now unless given. ``limit`` cuts the answer, ``survivors`` what reaches the heavy ranker.
    """

    scenario: Annotated[str, msgspec.Meta(min_length=1)]
    query: Mapping[str, Any]
    request_id: Annotated[str, msgspec.Meta(max_length=MAX_REQUEST_ID)] | None = None
    event_time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    candidates: Annotated[Sequence[str] | dict[str, Any] | None, msgspec.Meta(extra_json_schema=_COLUMNS_SCHEMA)] = None
    filters: Filters = Filters()
    survivors: Annotated[int, msgspec.Meta(ge=1)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    stage: Literal["full", "light"] = "full"
    timeout_ms: Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT_MS)] | None = None
    explain: bool = False


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """What ranked one scenario."""

    two_tower: str
    index: str
    heavy: str | None


class Ads(msgspec.Struct, frozen=True, kw_only=True):
    """The ranked ads, best first, as columns. ``light`` and ``heavy`` hold per-impression probabilities by task.

    A probability is null where the model of an ad's scenario lacks the task; ``heavy`` is null where it did not rank.
    """

    ids: Sequence[str]
    utilities: list[float]
    scenarios: list[str]
    explored: list[bool]
    light: dict[str, list[float | None]]
    heavy: dict[str, list[float | None]] | None


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates that were not ranked, by reason, in the order of the request; each stands in one list only."""

    unknown: Sequence[str] = []
    inactive: Sequence[str] = []
    filtered: Sequence[str] = []
    duplicate: Sequence[str] = []
    bid: Sequence[str] = []
    scenario: Sequence[str] = []


class Degraded(msgspec.Struct, frozen=True, kw_only=True):
    """Why the ads are in light order although the heavy ranker was asked for."""

    stage: Literal["heavy"]
    reason: Literal["deadline", "failed", "absent", "overloaded"]
    detail: str


class FeatureReport(msgspec.Struct, frozen=True, kw_only=True):
    """Query features that a model found missing or outside its vocabulary, and what it was given of each.

    ``encoded`` maps a feature, or a field of a history such as ``clicks.ad_id``, to its ids (1 is missing, 2 outside
    the vocabulary; events most recent first) or to its floats after scaling.
    """

    missing: list[str]
    out_of_vocabulary: list[str]
    encoded: dict[str, list[int | float]]


class CandidateTrace(msgspec.Struct, frozen=True, kw_only=True):
    """How far candidates came, as columns: the first 1,000 in the order of the request, ``omitted`` are more.

    A stage is the furthest that an ad reached: ``dropped`` before any score, ``light`` scored, ``survivor`` in the
    running until the end, ``answer`` in the answer. A reason says why it went no further: for dropped ads the names of
    ``dropped``, where ``inactive`` is told apart as ``status``, ``takedown`` and ``budget`` (it is used up); then
    ``survivors`` and ``limit`` for places that others got. ``light_ranks`` are places in the light order of all that
    were scored, ``ranks`` those among the survivors in final order, 1 the best, and ``utilities`` what that order goes
    by; ``light`` and ``heavy`` are per-impression probabilities by task. What a candidate never got is null.
    """

    ids: list[str]
    stages: list[Stage]
    reasons: list[str | None]
    light_utilities: list[float | None]
    omitted: int
    light_ranks: list[int | None] = []
    ranks: list[int | None] = []
    utilities: list[float | None] = []
    bids: list[float | None] = []
    objectives: list[str | None] = []
    light: dict[str, list[float | None]] = {}
    heavy: dict[str, list[float | None]] | None = None


class AdReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one heavy ranker was given of the first 100 ads of the answer that it ranks, as columns over ``ids``.

    ``encoded`` maps each feature of an ad, ``pair`` each feature of user and ad together, to one list of ids or floats
    an ad, as in ``FeatureReport``. ``lacking`` are pair features that the request did not bring.
    """

    ids: list[str]
    encoded: dict[str, list[list[int | float]]]
    pair: dict[str, list[list[int | float]]]
    lacking: list[str]


class Explain(msgspec.Struct, frozen=True, kw_only=True):
    """How the answer came about.

    The lists and logits go with ``ads.ids``. ``features`` is by model version, ``ads`` by that of the heavy ranker;
    ``light_ranks`` are places in the light order of all that were scored, 1 the best.
    """

    bids: list[float]
    objectives: list[str]
    light_utilities: list[float]
    light_logits: dict[str, list[float | None]]
    heavy_logits: dict[str, list[float | None]] | None
    counts: dict[str, int]
    features: dict[str, FeatureReport]
    candidates: CandidateTrace
    light_ranks: list[int] = []
    ads: dict[str, AdReport] = {}


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of each stage."""

    decode: float
    query_tower: float
    light: float
    heavy: float
    total: float


class RankResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one request."""

    request_id: str
    release: dict[str, Versions]
    ads: Ads
    dropped: Dropped
    arm: str | None
    warnings: list[str]
    degraded: Degraded | None
    explain: Explain | None
    timing_ms: Timing


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why there is no answer (RFC 9457). ``field`` is the dotted path of the request field at fault."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several requests in one body, each answered as if it had come alone at that moment."""

    requests: list[RankRequest]


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one request of a batch: its ``answer`` where ``status`` is 200, else a ``problem``."""

    status: int
    answer: RankResponse | None = None
    problem: Problem | None = None


class BatchResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to a batch, in the order of its requests."""

    answers: list[BatchAnswer]
