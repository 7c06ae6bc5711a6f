"""The impressions that a heavy ranker learns from: what was shown and has a label."""

from datetime import datetime
from pathlib import Path

from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from modeling.examples import Examples, encode_log


def read_impressions(
    schema: FeatureSchema, log: LogPaths, cache: Path, *, start: datetime | None = None, end: datetime | None = None
) -> Examples:
    """Winners with a label for the first task, of requests with ``start <= event_time < end``.

    Labels that are not known yet (immature, not shown) stay NaN, never 0.

    Args:
        schema: A fitted schema.
        cache: Directory that keeps the encoded log; a second call maps it.
    """
    return encode_log(schema, log, cache, teacher=False, labels=True, start=start, end=end, stages=("winner",))
