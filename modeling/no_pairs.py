"""What a log that leaves no pair to read lacks, in words: what was looked for, and why everything was left out."""

from contracts.records import LogPaths
from modeling.log_pairs import PairFilter
from modeling.log_requests import Window

_OUTSIDE = "request not read"
_WHY = {
    "stage": "are of other stages",
    "no ad row as of the request": "have no row in ads/ as of their request",
    "no label": "have no label of the first task",
    "no teacher": "have no teacher logit for every task, which `adsieve heavy score` writes",
}


def nothing_to_read(
    log: LogPaths, window: Window, pair_filter: PairFilter, *, requests: int, dropped: dict[str, int]
) -> str:
    """The message.

    Args:
        log: That was read.
        window: Requests that were looked for.
        pair_filter: Pairs of them that were looked for.
        requests: In the window.
        dropped: Pairs left out, by reason.
    """
    window_words = window.words()
    outside = "are of other scenarios or times" if window_words else "belong to no request of requests/"
    why = {_OUTSIDE: outside} | _WHY
    reasons = ", ".join(f"{count:,} pairs {why.get(name, name)}" for name, count in dropped.items() if count)
    where = log.candidates if requests else log.requests
    what = " or ".join(pair_filter.stages or ("pair",)) if requests else "request"
    return f"{where}: no {what}{window_words}: {reasons or 'there are none'}"
