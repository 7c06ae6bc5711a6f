"""The moment of a request that names none, where the clock of this host is behind the events that it brings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from contracts.errors import RequestError
from contracts.rows import parse_time
from contracts.schema import FeatureSchema
from contracts.sequence_encoder import FUTURE
from service.releases import LoadedRelease


def is_of_the_future(error: RequestError) -> bool:
    """Whether a request was refused for an event that is later than itself."""
    return FUTURE in str(error)


def latest_event_us(query: Mapping[str, Any], releases: Sequence[LoadedRelease]) -> int:
    """The latest moment in the histories that any model of ``releases`` reads, microseconds since 1970 UTC.

    Raises:
        RequestError: A moment cannot be read.
    """
    moments = [0]
    for schema in _schemas(releases):
        for name, feature in schema.side_features("query").items():
            given = query.get(name)
            for part, kind in (feature.fields or {}).items():
                if kind.kind == "age" and isinstance(given, Mapping):
                    values = enumerate(given.get(part) or ())
                    path = f"query.{name}.{part}"
                    moments += [parse_time(value, f"{path}[{row}]") for row, value in values if value is not None]
    return max(moments)


def _schemas(releases: Sequence[LoadedRelease]) -> Iterable[FeatureSchema]:
    for loaded in releases:
        yield loaded.schema
        if loaded.heavy is not None:
            yield loaded.heavy.schema
