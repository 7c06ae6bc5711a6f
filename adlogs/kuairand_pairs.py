"""The `candidates/` rows of the converted log: what was shown, and a sample of what could have been.

Letters: N impressions, R requests, M pairs.
"""

import numpy as np
import pyarrow as pa

from adlogs.kuairand_columns import floats
from adlogs.kuairand_histories import Histories, Matches
from adlogs.kuairand_requests import Context
from adlogs.kuairand_rows import Impressions

PAIR_STATISTICS = ("user_author", "user_tag", "user_video", "video_tab")
_MATCHES = (
    *(("watch", "tag"), ("watch", "author"), ("watch", "video")),
    *(("long_watch", "tag"), ("long_watch", "author")),
    *(("like", "tag"), ("like", "author")),
)


class PairBuilder:
    """Builds pairs of requests and videos.

    Args:
        context: Users, videos, statistics.
        requests: One impression of each request.
        histories: Of the same R.
    """

    def __init__(self, context: Context, requests: Impressions, histories: Histories) -> None:
        self._context, self._requests, self._histories = context, requests, histories
        self.ad_ids = pa.array(context.catalogue.ids).cast(pa.string())
        shared = {
            "tag": context.catalogue.tag,
            "author": context.catalogue.author,
            "video": np.arange(len(context.catalogue)),
        }
        self._matches = {
            f"{kind}_same_{what}": Matches(histories.by_kind[kind], shared[what]) for kind, what in _MATCHES
        }

    def features(self, request: np.ndarray, video: np.ndarray) -> dict[str, pa.Array]:
        """Pair features of M pairs: past of the user with the author, tag and video, and what the histories share.

        Args:
            request: Positions in the requests, int64 [M].
            video: Rows in the catalogue, int64 [M].
        """
        rows, statistics = self._requests, self._context.statistics
        who = {"user": rows.user[request], "tab": rows.tab[request], "video": video}
        values = statistics.columns(PAIR_STATISTICS, statistics.snapshot(rows.day[request]), **who)
        counts = {name: matches.count(request, video) for name, matches in self._matches.items()}
        watched = self._histories.num_events("watch")[request]
        values |= counts
        values["watch_tag_share"] = counts["watch_same_tag"] / np.maximum(watched, 1)
        values["long_watch_tag_rate"] = (counts["long_watch_same_tag"] + 1.0) / (counts["watch_same_tag"] + 2.5)
        return {name: floats(found) for name, found in values.items()}


def candidates_table(
    builder: PairBuilder,
    shown: Impressions,
    shown_request: np.ndarray,
    eligible: tuple[np.ndarray, np.ndarray],
    request_ids: pa.Array,
) -> pa.Table:
    """Pairs sorted by request: the winners of each, with their labels, then its eligible videos, without.

    Args:
        builder: Of the pair features.
        shown: Impressions.
        shown_request: Position of the request of each, int64.
        eligible: Position of the request, and row of the video, of each pair that was not shown.
        request_ids: Text [R].
    """
    request = np.concatenate([shown_request, eligible[0]])
    video = np.concatenate([shown.video, eligible[1]])
    unshown = np.arange(len(request)) >= len(shown)
    order = np.lexsort((unshown, request))
    request, video, unshown = request[order], video[order], unshown[order]
    outcomes = {"label_click": shown.click, "label_conv_engage": shown.engage}
    padded = {name: np.append(values, np.zeros(len(eligible[0]), np.int8))[order] for name, values in outcomes.items()}
    stage = pa.DictionaryArray.from_arrays(pa.array(unshown.astype(np.int32)), pa.array(["winner", "eligible"]))
    columns = {
        "request_id": request_ids.take(pa.array(request)),
        "ad_id": builder.ad_ids.take(pa.array(video)),
        "stage": stage,
        **{name: pa.array(values, pa.int8(), mask=unshown) for name, values in padded.items()},
    }
    return pa.table(columns | builder.features(request, video))
