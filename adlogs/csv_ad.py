"""Finds the column of ads where its name may not tell: by what it settles, and by how it stands in requests.

An id of ads settles other columns (one title and one advertiser each) and nothing finer settles it; within a request
and at one moment it does not come again, where that of the user does.

Letters: B rows of the sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from adlogs.csv_folder import GUESSED_ROWS, SampledFile
from adlogs.csv_join import Join
from adlogs.csv_names import AD_WORDS, USER_WORDS, best_named, plain
from adlogs.evidence import constancy
from adlogs.id_codes import repeats
from contracts.config_errors import suggestion
from contracts.errors import LogError

_SETTLED, _LEAST_GROUPS = 0.98, 5
_DIFFERS = 0.5  # of the requests of several rows, those with one value at most, where a column is an ad's
_AGAIN, _SELDOM = 0.1, 0.2  # share of rows whose value comes again at their moment: of users; of ads, against users
_SHOWN = 4


@dataclass(frozen=True)
class FoundAd:
    """The column of ads.

    Args:
        column: Of the facts.
        join: The file of ads, where there is one.
        note: Why it was taken, and what else it may be; empty where a name says it.
        user: A column that seems to be the user's, found beside it.
    """

    column: str
    join: Join | None
    note: str = ""
    user: str | None = None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the rows before the ad is.

    Args:
        file: One row an ad in a request.
        ids: Its columns that can be ids.
        joins: Files with one row a value of a column.
        request: Its column of requests.
        time: Its column of moments.
        user: Its column of users.
    """

    file: SampledFile
    ids: Sequence[str]
    joins: Sequence[Join]
    request: str | None
    time: str | None
    user: str | None

    def join_on(self, column: str) -> Join | None:
        return next((join for join in self.joins if join.column == column), None)


def find_ad(facts: Facts, given: str | None) -> FoundAd:
    """The column that a person named; else the one whose name, or the name of its file, tells; else by evidence.

    Raises:
        LogError: There is no such column, or the evidence does not decide.
    """
    if given is not None:
        if given not in facts.file.columns:
            near = suggestion(given, facts.file.columns)
            raise LogError(
                f"--ad-id {given}: {facts.file.path} has no such column, expected the ad's{near}; "
                f"found {facts.file.columns}"
            )
        return FoundAd(given, facts.join_on(given))
    ids = [name for name in facts.ids if not USER_WORDS.search(plain(name))]
    files = [j.column for j in facts.joins if j.column in ids and AD_WORDS.search(plain(j.file.name.partition(".")[0]))]
    joined = best_named([join.column for join in facts.joins if join.column in ids], AD_WORDS)
    named = joined or next(iter(files), None) or best_named(ids, AD_WORDS)
    if named is not None:
        return FoundAd(named, facts.join_on(named))
    if not ids:
        raise LogError(
            f"{facts.file.path}: no column looks like the id of an ad; expected one such as ad_id; "
            f"found {facts.file.columns}"
        )
    return _by_evidence(facts, ids)


@dataclass(frozen=True)
class _Evidence:
    """What a column does among the others.

    Args:
        name: Of the column.
        settles: Columns that have one value for each of its values.
        is_settled: Whether a finer column has one value of it each.
        is_of_user: Whether each user has one value of it, or each value one user.
        differs: Share of requests within which it differs; None where too few have several rows.
        again: Share of rows whose value comes again at the same moment; None where no moment is known.
    """

    name: str
    settles: list[str]
    is_settled: bool
    is_of_user: bool
    differs: float | None
    again: float | None

    def reason(self) -> str:
        shown = [*self.settles[:_SHOWN], *(["..."] if len(self.settles) > _SHOWN else [])]
        parts = [f"settles {', '.join(shown)}"] if shown else []
        parts += ["differs within requests"] if self.differs is not None and self.differs >= _DIFFERS else []
        return " and ".join(parts) or "settles nothing"


def _by_evidence(facts: Facts, ids: list[str]) -> FoundAd:
    measured = _Measure(facts)
    found = [measured.evidence(name) for name in ids]
    if len(ids) == 1:
        return FoundAd(ids[0], facts.join_on(ids[0]), "no name says so: the only column that can be the id of an ad")
    possible = [one for one in found if not one.is_settled and not one.is_of_user]
    left = [one for one in possible if one.settles] or possible
    differing = [one for one in left if one.differs is not None and one.differs >= _DIFFERS]
    left, user = differing or left, None
    often = max(left, key=lambda one: one.again or 0.0, default=None)
    if len(left) > 1 and often is not None and (often.again or 0.0) >= _AGAIN:
        seldom = [one for one in left if (one.again or 0.0) < _SELDOM * (often.again or 0.0)]
        left, user = (seldom, often.name) if seldom else (left, None)
    if len(left) != 1 or not (left[0].settles or left[0] in differing):
        raise _undecided(facts, left or found)
    others = [one.name for one in possible if one is not left[0] and one.name != user and one.settles]
    note = f"no name says so: it {left[0].reason()}" + (f", and {user} comes again at a moment" if user else "")
    note += f"; also possible: {', '.join(others)}" if others else ""
    return FoundAd(left[0].name, facts.join_on(left[0].name), note, user)


def _undecided(facts: Facts, left: list[_Evidence]) -> LogError:
    told = "; ".join(f"{one.name} {one.reason()}" for one in left[:_SHOWN])
    return LogError(
        f"{facts.file.path}: cannot tell which column is the id of the ad: {told}; found {facts.file.columns}",
        next_step=f"say it: adsieve convert csv {facts.file.path.parent} --propose FILE --ad-id COLUMN",
    )


@dataclass
class _Measure:
    """Measures columns of the first rows, int64 [B] codes each."""

    facts: Facts
    _codes: dict[str, np.ndarray] = field(default_factory=dict)

    def evidence(self, name: str) -> _Evidence:
        joined = self.facts.join_on(name)
        own = [] if joined is None else [column for column in joined.file.columns if column != joined.key]
        user, time = self.facts.user, self.facts.time
        return _Evidence(
            name=name,
            settles=[other for other in self._plain_columns if other != name and self._settles(name, other)] + own,
            is_settled=any(self._is_finer(other, name) for other in self.facts.ids if other != name),
            is_of_user=user in self.facts.file.columns and (self._each(user, name) or self._each(name, user)),
            differs=self._differs(name),
            again=None if time is None else float(self._comes_again(name, time)),
        )

    @cached_property
    def _plain_columns(self) -> list[str]:
        guesses = self.facts.file.guesses
        apart = (self.facts.request, self.facts.time, self.facts.user)
        return [name for name in self.facts.file.columns if name not in apart and not guesses[name].is_flag]

    def codes(self, name: str) -> np.ndarray:
        if name not in self._codes:
            self._codes[name] = self.facts.file.codes(name)[:GUESSED_ROWS]
        return self._codes[name]

    def _count(self, name: str) -> int:
        return len(np.unique(self.codes(name)))

    def _settles(self, name: str, other: str) -> bool:
        """Whether each value of a column has one value of another, which has fewer and more than one."""
        return 1 < self._count(other) < self._count(name) and self._each(name, other)

    def _is_finer(self, other: str, name: str) -> bool:
        """Whether another column settles this one; of two that settle each other the first stands for both."""
        if self._count(other) == self._count(name):
            names = self.facts.file.columns
            return names.index(other) < names.index(name) and self._each(other, name)
        return self._settles(other, name)

    def _each(self, name: str, other: str) -> bool:
        found = constancy(self.codes(other), self.codes(name))
        return found.groups >= _LEAST_GROUPS and found.share >= _SETTLED

    def _differs(self, name: str) -> float | None:
        if self._requests is None:
            return None
        found = constancy(self.codes(name), self._requests)
        return None if found.groups < _LEAST_GROUPS else 1 - found.share

    @cached_property
    def _requests(self) -> np.ndarray | None:
        """The request of each row: by its column, else by user and moment; None where neither is known."""
        user, time = self.facts.user, self.facts.time
        if self.facts.request is not None:
            return self.codes(self.facts.request)
        if user not in self.facts.file.columns or time is None:
            return None
        return self.codes(user) * (self.codes(time).max(initial=0) + 2) + self.codes(time)

    def _comes_again(self, name: str, time: str) -> np.floating:
        return repeats(self.codes(name), self.codes(time)).mean()
