"""Settings of the service: limits, policies, threads. Read from ``ADSIEVE_*`` variables unless given."""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.api import MAX_TIMEOUT_MS

Count = Annotated[int, Field(ge=1)]
EngineChoice = Literal["auto", "onnxruntime_cpu", "openvino_fp32", "openvino_bf16", "torch_cuda", "tensorrt"]
BatchingChoice = Literal["auto", "on", "off"]
Threads = Annotated[int, Field(ge=1, le=256)]
Share = Annotated[float, Field(ge=0, le=1)]


class Split(BaseModel):
    """A share of a scenario's users who are ranked by its second release.

    Args:
        release: Id, or ``previous``.
        share: Of the users.
        key: Query feature that tells users apart; requests without it stay with the first release.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    release: Annotated[str, Field(min_length=1)]
    share: Share
    key: Annotated[str, Field(min_length=1)] = "user_id"


class ShadowRelease(BaseModel):
    """A second release that ranks a share of a scenario's requests too, after they were answered.

    Args:
        release: Id, or ``previous``.
        share: Of the requests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    release: Annotated[str, Field(min_length=1)]
    share: Share = 1.0


def _is_http(url: str) -> bool:
    """Whether this is the address of a host, with a path or without."""
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0  # raises where it is none
    except ValueError:
        return False
    is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and has_port
    return is_whole and not (parts.query or parts.fragment or url.split() != [url])


class Settings(BaseSettings):
    """Everything that can be configured about ranking; the defaults are the stated policies.

    Limits:
        max_body_bytes: Larger request bodies get 413.
        max_candidates: Longer candidate lists get 422.
        max_survivors: Largest ``survivors`` a request may ask for.
        max_batch: Most requests of one /rank/batch, and never more than ``max_in_flight``.
        max_list_length: Longest history or list of values of one query feature.
        survivors: Ads kept for the heavy ranker when the request does not say.
        timeout_ms: Deadline when the request does not say; None is no deadline.
        max_in_flight: Requests being read, waiting or ranked; more get 503 at once.
        max_waiting: Requests in line that may wait or be ranked, once as many were answered and the line was not empty
            meanwhile; more get 503 at once, and from then on, until it is empty, whoever finds three quarters of them
            there, so that under a load beyond what the process can do the others are answered in time. Until then a
            line may grow to ``max_in_flight``.
        retry_after_s: What a 503 tells the caller to wait.

    Policies:
        unknown_ads: ``drop`` ads that the index does not hold, or ``score`` them as ads whose features are all missing
            (cold ads; only where the request names one scenario, since the scenario of an unknown ad is unknown).
        inactive_ads: ``drop`` ads whose status is not active, or ``rank`` them.
        duplicate_ads: ``drop`` repetitions of an id, the first one counts, or ``refuse`` the request.
        invalid_bids: ``drop`` ads with a negative or non-finite bid, or ``refuse`` the request.
        missing_bids: Ads with a bid neither in the request nor in the index, where others have one: ``drop`` them, or
            give them the ``median`` bid. When no candidate has a bid, all count as 1.
        unknown_features: ``warn`` in the answer and ignore, or ``refuse`` the request.
        missing_features: Use the trained ``default`` silently, or also ``warn``, or ``refuse`` the request.
        unknown_takedowns: ``refuse`` to serve an index where the log of updates is lost and this host does not know
            what it had stopped, or ``serve`` all the same.

    Releases:
        ab: By scenario, a second release for a share of its users, such as {"standard": {"release": "previous",
            "share": 0.1}}; ``key`` names the query feature that tells users apart, ``user_id`` unless given.
        shadow: By scenario, a second release that ranks a share of its requests once they are answered; see
            ``service.shadow``.

    Survivors:
        survivor_quotas: For requests of scenario ``auto``, shares of the survivors by scenario, such as
            {"standard": 0.5, "shopping": 0.3}: each from its own best ads; what is left goes to the best of the rest.
        explore_share: Of the survivors that are drawn at random from the ads that would not survive, marked
            ``explored`` in the answer, their propensity in the feedback log.

    Updates and stores:
        store: A directory, or the URL of a Redis server (``redis://``, ``rediss://``, ``unix://``).
        local: Directory for what this host keeps: the overlays of updates, and the mirror of a Redis store. By
            default ``hosts/<name of the host>`` in a directory store, a folder of the user's cache for Redis.
        update_interval_s: How often new updates are brought into effect, and a Redis store is asked for news.
        update_wait_s: How long a release that is loaded waits for another process to bring its updates into effect.
        max_index_age_h: An index whose watermark is older counts as old; None is no limit.
        old_index: Answers from an old index carry a warning (``warn``), or its scenario gets 503 (``refuse``).

    Work:
        rank_threads: Threads for the light stage; 0 runs it on the event loop itself: `--workers` scales, threads that
            share an interpreter hold one another up.
        query_batching: Whether query towers of requests that wait are run together: ``auto`` tries both when a release
            is loaded and takes what is faster here; ``on`` or ``off``. With ``rank_threads`` 0 at most two that wait
            for the same turn of the event loop, with 1 none.
        query_batch: Most requests of one call.
        query_batch_wait_ms: How long a request waits for others to join it.
        query_queue: Most requests that wait for a query tower; one more gets 503 at once.
        light_device: Where the light stage's vectors lie: ``cuda`` is a GPU, ``auto`` takes one where there is one, its
            scores are the CPU's and it is faster; not yet run on a GPU.
        device_memory_mib: Most memory that each process fills on a GPU, all its models, vectors and search indexes
            together, during a reload the old and the new; what finds no room runs on the CPU. None is no limit.
        heavy_threads: Calls of heavy rankers at the same time.
        heavy_batching: Whether the heavy ranker takes waiting requests together: ``auto`` tries both when it is loaded
            and takes what is faster here; ``on`` or ``off``.
        heavy_batch: Most requests of one call: those that wait when a thread becomes free.
        heavy_batch_rows: Most survivors of one call that serves several requests.
        heavy_batch_wait_ms: How long a call waits for others to join it.
        heavy_queue: Most calls that wait; a request more gets the light order.
        heavy_url: Of a host that runs the heavy stage (``adsieve serve --role heavy``), such as http://heavy:8001; None
            runs it in this process.
        heavy_token: Bearer token that the heavy host asks for, if it asks for one.
        heavy_timeout_ms: How long an answer of the heavy host is waited for, whatever the request's deadline.
        heavy_connections: To the heavy host, at most.
        heavy_failures: Calls that fail in a row after which the heavy host is left alone for a while.
        heavy_pause_s: The while; then one call tries.
        engine_threads: Threads of one operator of one graph.
        query_engine: What runs the query tower; ``auto`` takes, when a release is loaded, an engine that keeps the
            probabilities and the order of its parity rows here: ``onnxruntime_cpu`` unless another is a tenth faster.
            All processes of a host take what the first of them chose. ``adsieve rank`` uses ``onnxruntime_cpu``.
        heavy_engine: The same for the heavy ranker.
        retrieval_overfetch: Without candidates, ads fetched per survivor, before exact utility re-ranks them.
        poll_interval_s: How often the store's pointer is read.
        failed_retry_s: Pause before a release that could not be loaded is tried again.

    Operations:
        admin_token: Bearer token of the admin routes; without one they answer 401 to everybody, but that the console
            tells callers on this machine what it knows.
        rank_token: Bearer token that rank requests need; None lets everybody rank.
        header_timeout_s: How long the headers of a request may take to arrive; a slower connection is ended.
        write_timeout_s: How long the rest of an answer may wait for its caller to read; then the connection is ended.
        keep_alive_s: How long a connection may rest between two requests; a caller that keeps its own for longer sends
            some requests just when they end.
        body_timeout_s: How long the body of a request may take to arrive; a slower one gets 408.
        shutdown_s: When told to stop, how long requests in flight may take; what is left then is cut off.
        drain_s: When told to stop, how long requests are still taken while /health/ready already says no, so that a
            load balancer looks elsewhere first.
        slow_ms: Answers that took longer are logged with their stages; None logs none.
        log_lines_per_s: Most lines a second of slow, degraded and failed requests each, in a process.

    Feedback log:
        feedback_dir: Where answered requests are logged for the next training run; None is nowhere. Several processes
            may share it.
        feedback_share: Share of the requests that are logged, by a hash of their id.
        feedback_queue: Most requests that wait to be written, and a thousandth of the candidates that do; what is more
            is dropped and counted.
        feedback_rows: Candidates after which a file ends.
        feedback_seconds: Time after which a file ends, and the most that a killed process loses.
    """

    @field_validator("survivor_quotas")
    @classmethod
    def _in_sum_at_most_1(cls, quotas: dict[str, float]) -> dict[str, float]:
        if sum(quotas.values()) > 1 + 1e-9:
            raise ValueError(f"expected shares of at most 1 in sum, got {sum(quotas.values()):g}")
        return quotas

    @field_validator("heavy_url")
    @classmethod
    def _of_a_host(cls, url: str | None) -> str | None:
        if url is not None and not _is_http(url):
            raise ValueError("expected http://HOST:PORT")
        return url

    @field_validator("admin_token", "rank_token", "heavy_token")
    @classmethod
    def _that_can_be_sent(cls, token: SecretStr | None) -> SecretStr | None:
        """An empty token would be anybody's, and one with a space or line's end around it nobody's."""
        text = "x" if token is None else token.get_secret_value()
        if not text or text != text.strip() or not text.isprintable():
            raise ValueError("expected a token without white space around it, at least a character; none: unset it")
        return token

    model_config = SettingsConfigDict(env_prefix="ADSIEVE_", frozen=True, extra="forbid")

    store: Path | str
    local: Path | None = None

    max_body_bytes: Count = 16 << 20
    max_candidates: Count = 100_000
    max_survivors: Count = 10_000
    max_batch: Count = 32
    max_list_length: Count = 10_000
    survivors: Count = 100
    timeout_ms: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_MS)] | None = None
    max_in_flight: Count = 64
    max_waiting: Count = 8
    retry_after_s: Count = 1

    unknown_ads: Literal["drop", "score"] = "drop"
    inactive_ads: Literal["drop", "rank"] = "drop"
    duplicate_ads: Literal["drop", "refuse"] = "drop"
    invalid_bids: Literal["drop", "refuse"] = "drop"
    missing_bids: Literal["drop", "median"] = "drop"
    unknown_features: Literal["warn", "refuse"] = "warn"
    missing_features: Literal["default", "warn", "refuse"] = "default"
    unknown_takedowns: Literal["refuse", "serve"] = "refuse"

    ab: Annotated[dict[str, Split], Field(examples=['{"shopping": {"release": "previous", "share": 0.1}}'])] = {}
    shadow: Annotated[
        dict[str, ShadowRelease], Field(examples=['{"shopping": {"release": "previous", "share": 0.05}}'])
    ] = {}
    survivor_quotas: Annotated[dict[str, Share], Field(examples=['{"shopping": 0.3, "standard": 0.5}'])] = {}
    explore_share: Annotated[float, Field(ge=0, le=0.5)] = 0.0

    rank_threads: Annotated[int, Field(ge=0, le=256)] = 0
    query_batching: BatchingChoice = "auto"
    query_batch: Annotated[int, Field(ge=1, le=1_024)] = 16
    query_batch_wait_ms: Annotated[float, Field(ge=0, le=1_000)] = 0.0
    query_queue: Annotated[int, Field(ge=1, le=100_000)] = 64
    light_device: Literal["auto", "cpu", "cuda"] = "auto"
    device_memory_mib: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    heavy_threads: Threads = 1
    heavy_batching: BatchingChoice = "auto"
    heavy_batch: Annotated[int, Field(ge=1, le=1_024)] = 8
    heavy_batch_rows: Annotated[int, Field(ge=1, le=1_000_000)] = 2_048
    heavy_batch_wait_ms: Annotated[float, Field(ge=0, le=1_000)] = 0.0
    heavy_queue: Annotated[int, Field(ge=1, le=100_000)] = 64
    heavy_url: str | None = None
    heavy_token: SecretStr | None = None
    heavy_timeout_ms: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_MS)] = 1_000.0
    heavy_connections: Annotated[int, Field(ge=1, le=1_024)] = 16
    heavy_failures: Annotated[int, Field(ge=1, le=1_000)] = 5
    heavy_pause_s: Annotated[float, Field(gt=0, le=3_600)] = 2.0
    engine_threads: Threads = 2
    query_engine: EngineChoice = "auto"
    heavy_engine: EngineChoice = "auto"
    retrieval_overfetch: Annotated[float, Field(ge=1, le=1_000)] = 4.0
    update_interval_s: Annotated[float, Field(gt=0, le=86_400)] = 0.5
    update_wait_s: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    max_index_age_h: Annotated[float, Field(gt=0, le=87_600)] | None = None
    poll_interval_s: Annotated[float, Field(gt=0, le=86_400)] = 1.0
    failed_retry_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    admin_token: SecretStr | None = None
    rank_token: SecretStr | None = None
    header_timeout_s: Annotated[float, Field(gt=0, le=3_600)] = 10.0
    write_timeout_s: Annotated[float, Field(gt=0, le=3_600)] = 30.0
    keep_alive_s: Annotated[int, Field(ge=1, le=3_600)] = 75
    body_timeout_s: Annotated[float, Field(gt=0, le=3_600)] = 10.0
    shutdown_s: Annotated[int, Field(ge=1, le=3_600)] = 30
    drain_s: Annotated[float, Field(ge=0, le=3_600)] = 0.0
    slow_ms: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_MS)] | None = None
    log_lines_per_s: Annotated[float, Field(gt=0, le=10_000)] = 5.0
    old_index: Literal["warn", "refuse"] = "warn"

    feedback_dir: Path | None = None
    feedback_share: Share = 1.0
    feedback_queue: Annotated[int, Field(ge=1, le=1_000_000)] = 1_024
    feedback_rows: Annotated[int, Field(ge=1, le=100_000_000)] = 1_000_000
    feedback_seconds: Annotated[float, Field(gt=0, le=86_400)] = 60.0
