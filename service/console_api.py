"""What the console's routes take and answer."""

import msgspec

from contracts.release import Judgement
from service.api import RankRequest, RankResponse
from service.status import Fault, RefusedRelease


class ConsoleRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A release that the store keeps.

    ``state`` is ``current``, ``earlier`` (a rollback steps back to it), ``aside`` or ``pruned``. Metrics are those that
    the manifests of its bundles name, by dotted names, and ``replay`` those of the replay before it was published;
    what cannot be read any more is empty. ``created_at`` and ``watermark`` are ISO 8601, ages in seconds.
    """

    release_id: str
    number: int
    state: str
    is_serving: bool
    pinned: bool
    created_at: str
    age_s: float
    watermark: str | None
    watermark_age_s: float | None
    two_tower: str
    heavy: str | None
    index: str
    num_ads: int | None
    two_tower_metrics: dict[str, float | None]
    heavy_metrics: dict[str, float | None]
    retrieval_recall: dict[str, float | None]
    index_warnings: list[str]
    replay: dict[str, float]
    judgement: Judgement | None


class ConsoleScenario(msgspec.Struct, frozen=True, kw_only=True):
    """The releases of a scenario, what serves first; ``omitted`` are more.

    ``serving`` is what this worker serves, ``current`` what the pointer names, ``rollback_to`` what a rollback would
    lead to, null where there is none. ``error`` tells why the store's list cannot be read.
    """

    scenario: str
    serving: str | None
    loaded_at: float | None
    engines: dict[str, str]
    num_ads: int
    overlay_rows: int
    current: str | None
    rollback_to: str | None
    releases: list[ConsoleRelease]
    omitted: int
    error: str | None


class ConsoleReleases(msgspec.Struct, frozen=True, kw_only=True):
    """All scenarios. ``may_roll_back`` says whether the service has an admin token, without which nobody may."""

    may_roll_back: bool
    scenarios: list[ConsoleScenario]
    refused: list[RefusedRelease]
    faults: list[Fault]


class SavedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that a serving two-tower bundle holds; ``candidates`` is None where ads are retrieved."""

    scenario: str
    number: int
    request_id: str | None
    candidates: int | None


class SavedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The first saved requests of each scenario."""

    requests: list[SavedRequest]


class ConsoleRankRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to rank without leaving a trace in metrics or the feedback log.

    ``against`` is a release of the request's scenario that the store keeps; it ranks the same request beside what
    serves.
    """

    request: RankRequest
    against: str | None = None


class ConsoleRanked(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, explained, with the release and the engines of each scenario. ``load_ms`` was spent to load it."""

    releases: dict[str, str]
    engines: dict[str, dict[str, str]]
    load_ms: float
    answer: RankResponse


class ConsoleRankResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of what serves, and that of the other release where one was asked for."""

    serving: ConsoleRanked
    against: ConsoleRanked | None
