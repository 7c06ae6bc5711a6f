"""How far a release may be from the one that serves, and what it has to reach by itself."""

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Excess = Annotated[float, Meta(ge=0.0, le=1e6)]


class ReleaseLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a replay of saved requests, and of what became of the ads. A limit that is null is not judged.

    Args:
        min_requests: Saved requests that there must be to judge by.
        survivors: Ads that survive the light stage, at most a quarter of a list.
        min_overlap: Least share of the survivors that the current release chooses too, on average.
        max_unknown_share: Most of the requests' candidates that the index may lack.
        max_inactive_share: Most of those that it holds that may be inactive.
        max_lacking_share: Most of the ads that are active in the index that serves that this one may lack.
        max_older_share: Most of the ads of both that may be of an earlier moment here than in the index that serves.
        max_calibration_current: Sums of light probabilities may be off those of the current release, head by head, by
            a factor of 1 plus this, either way.
        max_calibration_heavy: The same against the release's own heavy ranker.
    """

    min_requests: Annotated[int, Meta(ge=1, le=1_000_000)] = 10
    survivors: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    min_overlap: Share | None = 0.5
    max_unknown_share: Share | None = 0.1
    max_inactive_share: Share | None = 0.5
    max_lacking_share: Share | None = 0.2
    max_older_share: Share | None = 0.2
    max_calibration_current: Excess | None = 0.5
    max_calibration_heavy: Excess | None = 1.0


def failures(limits: ReleaseLimits, metrics: Mapping[str, float]) -> list[str]:
    """What is beyond the limits, each with its figure and its limit.

    Example:
        >>> failures(ReleaseLimits(), {"requests": 32.0, "unknown_share": 0.25, "calibration_heavy.click": 0.4})
        ['unknown_share is 0.25; max_unknown_share allows 0.1', \
'calibration_heavy.click is 0.4, which is 2.5 times too low; max_calibration_heavy allows 1, so 2 times either way']
    """
    return [*_floors(limits, metrics), *_calibrations(limits, metrics)]


def _floors(limits: ReleaseLimits, metrics: Mapping[str, float]) -> Iterator[str]:
    requests = int(metrics["requests"])
    if requests < limits.min_requests:
        yield f"{requests} saved requests could be replayed; min_requests asks for {limits.min_requests}"
    for name in ("unknown_share", "inactive_share", "lacking_share", "older_share"):
        most, found = getattr(limits, f"max_{name}"), metrics.get(name)
        if most is not None and found is not None and found > most:
            yield f"{name} is {found:.4g}; max_{name} allows {most:.4g}"
    overlap, least = metrics.get("overlap"), limits.min_overlap
    if least is not None and overlap is not None and overlap < least:
        yield f"overlap with the current release is {overlap:.4g}; min_overlap asks for {least:.4g}"


def _calibrations(limits: ReleaseLimits, metrics: Mapping[str, float]) -> Iterator[str]:
    for name, found in metrics.items():
        kind, _, head = name.partition(".")
        most = getattr(limits, f"max_{kind}", None) if head else None
        if most is None:
            continue
        off = max(found, 1.0 / found) - 1.0 if found > 0 else float("inf")
        if off > most:
            allowed = f"max_{kind} allows {most:.4g}, so {1 + most:.7g} times either way"
            yield f"{name} is {found:.4g}, which is {1 + off:.4g} times too {'low' if found < 1 else 'high'}; {allowed}"
