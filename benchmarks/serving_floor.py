"""``adsieve serve`` without ranking: the same application decodes each request and encodes an answer that it knows.

``python -m benchmarks.serving_floor serve ...`` takes the options of ``adsieve serve``. The first request of each
number of candidates and stage is ranked truly; its outcome is the answer to all that follow.
"""

import adsieve
from service import rank_route
from service.api import RankRequest
from service.ranker import Outcome
from service.ranker import rank as truly_rank


class FixedRanking:
    """Stands in for ``service.ranker.rank``."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[int, str], Outcome] = {}

    def __call__(self, request: RankRequest, *arguments: object, **named: object) -> Outcome:
        candidates = request.candidates
        ids = candidates.get("ids", []) if isinstance(candidates, dict) else candidates or []
        key = len(ids), request.stage
        outcome = self._outcomes.get(key)
        if outcome is None:
            outcome = self._outcomes[key] = truly_rank(request, *arguments, **named)  # type: ignore[arg-type]
        return outcome


def main() -> None:
    """Serve."""
    if getattr(rank_route, "rank", None) is not truly_rank:
        raise RuntimeError("service.rank_route no longer calls service.ranker.rank: serving_floor must be adapted")
    vars(rank_route)["rank"] = FixedRanking()
    adsieve.main()


if __name__ == "__main__":
    main()
