"""Raw features of a request to encoded rows, under the policies for unknown and missing ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from contracts import compiled
from contracts.encoding import Encoded
from contracts.errors import RequestError
from contracts.layout import SideLayout
from contracts.lexicon import Lexicon
from contracts.query_in_body import QueryInBody
from contracts.row_encoder import RowEncoder
from service.releases import LoadedRelease
from service.settings import Settings
from service.shortened import shortened


@dataclass(frozen=True)
class Report:
    """Query features that one model found missing or outside its vocabulary."""

    missing: list[str]
    out_of_vocabulary: list[str]


_KEPT_NAMES = 64
"""Sets of names that models know, of which the last ones stay prepared."""
MAX_NAMED, MAX_NAME = 50, 200
"""Unknown features that an answer names, and characters of each name."""


@dataclass
class FeatureNotes:
    """What was found about the features of one request, for its warnings, its explanation and the metrics.

    ``unknown`` are dotted names that no model reads; ``reports`` and encoded rows are by model version. ``late_s``
    is how far the clock of this host is behind the events of a request that names no moment.
    """

    unknown: list[str] = field(default_factory=list)
    reports: dict[str, Report] = field(default_factory=dict)
    encoded: dict[str, tuple[SideLayout, Encoded]] = field(default_factory=dict)
    late_s: float = 0.0

    def missing(self) -> list[str]:
        """Dotted names of query features that some model found missing, sorted."""
        return sorted({f"query.{name}" for report in self.reports.values() for name in report.missing})

    def warnings(self, settings: Settings) -> list[str]:
        """The lines for the answer."""
        lines = [f"unknown feature {shortened(name, MAX_NAME)} ignored" for name in self.unknown[:MAX_NAMED]]
        if len(self.unknown) > MAX_NAMED:
            lines.append(f"{len(self.unknown) - MAX_NAMED:,} more unknown features ignored")
        if self.late_s > 0:
            lines.append(
                f"events are {self.late_s:.3f} s later than this host's clock, ages are taken against the latest"
            )
        if settings.missing_features == "warn":
            lines += [f"missing feature {name}, its default was used" for name in self.missing()]
        return lines


def note_unknown(
    query: Mapping[str, Any], pair: Mapping[str, Any], releases: Sequence[LoadedRelease], settings: Settings
) -> list[str]:
    """Dotted names of features, and of fields of histories, that no model of ``releases`` reads, nor a split of users.

    Raises:
        RequestError: There is one and the policy refuses it.
    """
    known = releases[0].known_features
    if len(releases) > 1:
        known = known.union(*(release.known_features for release in releases[1:]))
    if settings.ab:
        splits = [settings.ab[loaded.scenario] for loaded in releases if loaded.scenario in settings.ab]
        known = known.union(f"query.{split.key}" for split in splits)  # it is read to split users
    if type(query) is QueryInBody and not pair and _knows(known, query):
        return []
    unknown = [name for name in _given_names(query, pair, known) if name not in known]
    if unknown and settings.unknown_features == "refuse":
        raise RequestError("unknown feature, no model of this scenario reads it", field=unknown[0])
    return unknown


def _knows(known: frozenset[str], query: QueryInBody) -> bool:
    """Whether all names of a query in a body are known; False where nobody can say."""
    kernels, lexicon = compiled.kernels(), _names(known)
    if kernels is None:
        return False
    found: bool = kernels.knows_names(query.data, query.values_at, lexicon.slots, lexicon.texts)
    return found


@lru_cache(maxsize=_KEPT_NAMES)
def _names(known: frozenset[str]) -> Lexicon:
    """Names of features in group 0, those of the fields of a history in the group that is the id of its name."""
    features = sorted(name.removeprefix("query.") for name in known if name.startswith("query."))
    groups = {name: group for group, name in enumerate(features, 1)}
    pairs = [(name[:dot], name[dot + 1 :]) for name in features for dot in range(len(name)) if name[dot] == "."]
    fields = [(groups[history], field, 0) for history, field in pairs if history in groups]
    return Lexicon([*((0, name, group) for name, group in groups.items()), *fields])


def _given_names(query: Mapping[str, Any], pair: Mapping[str, Any], known: frozenset[str]) -> list[str]:
    names = []
    for name, value in query.items():
        names.append(f"query.{name}")
        if isinstance(value, dict) and names[-1] in known:
            names += [f"query.{name}.{column}" for column in value]
    return [*names, *(f"candidates.{name}" for name in pair)]


def check_lengths(query: Mapping[str, Any], max_list_length: int) -> None:
    """Refuse lists, and lists inside histories, that are longer than allowed.

    Raises:
        RequestError: Names the feature or the field of a history.
    """
    if type(query) is QueryInBody and query.longest <= max_list_length:
        return
    for name, value in query.items():
        columns = value.items() if isinstance(value, dict) else [("", value)]
        for column, values in columns:
            if isinstance(values, list) and len(values) > max_list_length:
                path = f"query.{name}.{column}".removesuffix(".")
                raise RequestError(f"at most {max_list_length:,} values, got {len(values):,}", field=path)


@dataclass(frozen=True, kw_only=True)
class QueryEncoding:
    """Encodes the features of one request for one model after another.

    ``event_time_us`` is the moment that ages are taken against, microseconds since 1970 UTC; what is missing goes to
    ``notes``.
    """

    query: Mapping[str, Any]
    event_time_us: int
    notes: FeatureNotes
    settings: Settings

    def encode(self, rows: RowEncoder, version: str) -> Encoded:
        """One encoded row.

        Args:
            rows: Of the query side of a model.
            version: Of the model, the key in ``notes.reports``.

        Raises:
            RequestError: A value of a wrong type, not finite, an event later than the request; or a policy refuses that
                a feature is missing.
        """
        row = rows.encode(self.query, event_time_us=self.event_time_us)
        if row.missing and self.settings.missing_features == "refuse":
            raise RequestError("required feature is missing", field=f"query.{row.missing[0]}")
        self.notes.reports[version] = Report(row.missing, row.out_of_vocabulary)
        self.notes.encoded[version] = (rows.layout, row.encoded)
        return row.encoded
