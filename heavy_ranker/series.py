"""A teacher: one sealed bundle, or a series of them so that each row has a member that has not trained on it.

A series directory holds ``members/<day or fold>/bundle`` and, last, ``series.json``. Opening one needs no torch.

Shapes: R requests.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from contracts.artifact import holding
from contracts.bundle import Bundle, open_bundle
from contracts.errors import ArtifactError, InputError, MismatchError, WrongArtifactError
from contracts.records import plain_text
from contracts.schema import FeatureSchema
from modeling.log_requests import utc_microseconds

SERIES_FILE, MEMBERS, BUNDLE, RUN = "series.json", "members", "bundle", "run"
NO_MEMBER = -1
"""In place of a member where a series has none for a request: before the first day that it scores."""

SeriesKind = Literal["daily", "folds"]


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of a series and the rows that it scores, none of which it has trained on.

    Args:
        name: Its directory: the day from which it scores, or its fold.
        version: Of its bundle.
        scores_from: It scores requests not before this time; None in a series of folds.
        scores_until: And before this time; None without an end.
        fold: It scores the requests of this fold; None in a daily series.
        impressions: That it learned from in its own training, not counting what its warm start had learned.
        metrics: On the impressions that it scores and that were in the log when it was made.
    """

    name: str
    version: str
    scores_from: datetime | None = None
    scores_until: datetime | None = None
    fold: int | None = None
    impressions: int
    metrics: dict[str, Any] = {}


class SeriesManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a series is; ``version`` follows from the rest and stands as ``teacher_version`` in every row it scores.

    Args:
        kind: ``daily``: trained progressively, each day by the model of the days before. ``folds``: out of fold.
        fold_by: Column of ``requests/`` whose hash is the fold.
        schema_fingerprint: Of the schema of all members.
        config: The one configuration.
        members: In the order of days or folds.
    """

    version: str
    kind: SeriesKind
    fold_by: str | None = None
    schema_fingerprint: str
    config: dict[str, Any]
    members: list[Member]


@dataclass(frozen=True)
class TeacherMember:
    """A sealed bundle and the requests that it scores, times in microseconds UTC, None without a bound."""

    bundle: str
    start: int | None = None
    end: int | None = None
    fold: int | None = None


@dataclass(frozen=True)
class Teacher:
    """What scores a log.

    Args:
        version: Written beside every score.
        schema: Of all members.
        members: Position is the code that :meth:`member_of` gives.
        fold_by: Column of ``requests/`` that the folds hash; None without folds.
        seen_until: Microseconds UTC, the latest request that a single bundle may have trained on; None for a series,
            which has seen none of what it scores.
    """

    version: str
    schema: FeatureSchema
    members: tuple[TeacherMember, ...]
    fold_by: str | None = None
    seen_until: int | None = None

    def member_of(self, event_time: np.ndarray, keys: pa.ChunkedArray | None = None) -> np.ndarray:
        """int16 [R], the member that scores each request, ``NO_MEMBER`` where there is none.

        Args:
            event_time: int64 [R] microseconds UTC.
            keys: The column ``fold_by`` [R]; needed where there are folds.
        """
        found = np.full(len(event_time), NO_MEMBER, np.int16)
        folds = None if self.fold_by is None else folds_of(keys, len(self.members))
        for position, member in enumerate(self.members):
            own = np.ones(len(event_time), bool)
            if member.start is not None:
                own &= event_time >= member.start
            if member.end is not None:
                own &= event_time < member.end
            if folds is not None:
                own &= folds == member.fold
            found[own] = position
        return found


def folds_of(keys: pa.ChunkedArray | pa.Array | None, folds: int) -> np.ndarray:
    """int16 [R], the fold of each key: ``xxh64(text) % folds``, of its decimal text for an integer, "" where missing.

    Example:
        >>> folds_of(pa.array(["a", "b", "c", None]), 4).tolist()
        [3, 3, 1, 1]
    """
    if keys is None:
        raise InputError("the folds of this series need a column that the requests lack")
    encoded = pa.chunked_array(
        [plain_text(keys)] if isinstance(keys, pa.Array) else plain_text(keys).chunks, pa.string()
    )
    dictionary = encoded.combine_chunks().fill_null("").dictionary_encode()
    digests = [xxhash.xxh64_intdigest(text.encode()) % folds for text in dictionary.dictionary.to_pylist()]
    return np.array(digests, np.int16)[np.asarray(dictionary.indices)]


def series_version(
    *, kind: SeriesKind, fold_by: str | None, schema_fingerprint: str, config: dict[str, Any], members: Sequence[Member]
) -> str:
    """The version of a series: it follows from its configuration, its schema and its members' bundles."""
    rules = [[m.version, m.scores_from, m.scores_until, m.fold] for m in members]
    content = msgspec.json.encode([kind, fold_by, schema_fingerprint, config, rules], order="sorted")
    return f"series-{kind}-{hashlib.sha256(content).hexdigest()[:12]}"


def read_series(path: Path) -> SeriesManifest:
    """The manifest of a series.

    Raises:
        WrongArtifactError: There is none.
        ArtifactError: It is malformed.
        MismatchError: It has changed since it was written.
    """
    source = Path(path) / SERIES_FILE
    if not source.is_file():
        raise WrongArtifactError(
            f"{path}: no finished series here (no {SERIES_FILE}){holding(path)}; run `adsieve heavy train --series`"
        )
    try:
        manifest = msgspec.json.decode(source.read_bytes(), type=SeriesManifest)
    except msgspec.DecodeError as error:
        raise ArtifactError(f"{source}: not the manifest of a series: {error}") from error
    expected = series_version(
        kind=manifest.kind,
        fold_by=manifest.fold_by,
        schema_fingerprint=manifest.schema_fingerprint,
        config=manifest.config,
        members=manifest.members,
    )
    if manifest.version != expected:
        raise MismatchError(f"{source}: says version {manifest.version}, its content gives {expected}")
    return manifest


def series_teacher(path: Path) -> Teacher:
    """Open a series, every bundle of it verified.

    Raises:
        ArtifactError: It is unfinished, or a bundle is truncated or altered.
        MismatchError: A bundle is not the one that the series was made of.
    """
    manifest = read_series(path)
    members, schemas = [], []
    for member in manifest.members:
        place = member_path(path, member.name) / BUNDLE
        bundle = open_bundle(place, kind="heavy")
        if (bundle.manifest.version, bundle.manifest.schema_fingerprint) != (
            member.version,
            manifest.schema_fingerprint,
        ):
            raise MismatchError(f"{place}: is {bundle.manifest.version}, the series was made with {member.version}")
        start, end = (
            None if time is None else utc_microseconds(time) for time in (member.scores_from, member.scores_until)
        )
        members.append(TeacherMember(str(place), start, end, member.fold))
        schemas.append(bundle.schema)
    return Teacher(manifest.version, schemas[0], tuple(members), manifest.fold_by)


def bundle_teacher(bundle: Bundle) -> Teacher:
    """A single bundle as the teacher of every row."""
    watermark = utc_microseconds(datetime.fromisoformat(bundle.manifest.watermark))
    return Teacher(bundle.manifest.version, bundle.schema, (TeacherMember(str(bundle.path)),), seen_until=watermark)


def newest_run(path: Path) -> Path:
    """The run of the newest model of a daily series; ``path`` itself where it is no series.

    Raises:
        InputError: A series of folds has no newest model.
        ArtifactError: The series is malformed.
    """
    if not (Path(path) / SERIES_FILE).is_file():
        return Path(path)
    manifest = read_series(path)
    newest = member_path(path, manifest.members[-1].name) / RUN
    if manifest.kind == "folds":
        raise InputError(
            f"{path}: is a series of {len(manifest.members)} folds, none of whose models is the newest; name the run "
            f"of one, such as {newest}"
        )
    return newest


def member_path(series: Path, name: str) -> Path:
    """Directory of one member."""
    return Path(series) / MEMBERS / name
