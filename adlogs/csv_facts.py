"""Lines of a proposed mapping for the file with outcomes: sides by what columns are constant within, and leaks."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from adlogs.csv_column import LABEL
from adlogs.csv_folder import SampledFile
from adlogs.csv_lines import changed, fixed_line, key_line, label_line, plain_line
from adlogs.csv_names import plain
from adlogs.csv_proposal import Line, Proposal
from adlogs.csv_roles import Roles
from adlogs.evidence import MIN_GROUPS, constancy, suspicion
from adlogs.id_codes import repeats
from contracts.columns import numbers

_OUTCOME_NAMES = re.compile(r"dwell|watched|played|time_spent|spent|stay|revenue|completed")


def fact_lines(roles: Roles, proposal: Proposal) -> list[Line]:
    """Lines of the file with outcomes."""
    file, lines = roles.facts, []
    keys = {roles.time: "event_time", roles.ad: "ad_id", roles.request: "request_id"}
    if roles.requests is None:
        keys[roles.user] = "user_id"
    groups = _groups(roles)
    for name in file.columns:
        if name in keys:
            line = key_line(file, name, keys[name], roles)
        elif name in roles.labels:
            line = label_line(file, name)
        else:
            line = _fact_line(file, name, roles, groups, proposal)
        proposal.taken.add(line.column.name)
        lines.append(line)
    return sorted(lines, key=lambda line: (line.left_out, not _is_key(line.column.name)))


def _is_key(name: str) -> bool:
    return name in ("event_time", "ad_id", "request_id", "user_id") or name.startswith(LABEL)


@dataclass(frozen=True)
class _Groups:
    """Which rows of the facts belong to one request, and to one ad: codes, int64 [B]."""

    request: np.ndarray
    ad: np.ndarray


def _groups(roles: Roles) -> _Groups:
    file = roles.facts
    ad = file.codes(roles.ad)
    if roles.request is not None:
        return _Groups(file.codes(roles.request), ad)
    if roles.user is None or roles.time is None:
        return _Groups(np.arange(file.rows.num_rows), ad)
    both = np.stack([file.codes(roles.user), file.codes(roles.time)])
    _, request = np.unique(both, axis=1, return_inverse=True)
    return _Groups(request.reshape(-1), ad)


def _fact_line(file: SampledFile, name: str, roles: Roles, groups: _Groups, proposal: Proposal) -> Line:
    """Any other column of the facts: of the request, the ad or the pair, or an outcome in disguise."""
    fixed = fixed_line(file, name)
    if fixed is not None:
        return fixed
    codes = file.codes(name)
    side, why = _side(codes, groups, has_ads=roles.ads is not None, in_candidates=roles.requests is not None)
    line = plain_line(file, name, proposal.taken)
    if _counts(file, name, groups.request):
        line.comment, line.check = f"{line.comment}; counts the rows of a request: a place? then name: position", True
    column = line.column
    if roles.requests is None:
        column = changed(column, side=None if side == "query" else side)
        line.comment = "; ".join(filter(None, (line.comment, why)))
    line.column = column
    for label in roles.labels:
        outcome = numbers(file.values(label).cast(pa.int8()))
        found = suspicion(_as_values(file, name), outcome, label_line(file, label).column.name.removeprefix(LABEL))
        if found is not None:
            line.comment, line.check = f"leak suspected: {found.reason}", True
            line.left_out = line.left_out or found.sure
            return line
    if _OUTCOME_NAMES.search(plain(name)):
        line.comment, line.check, line.left_out = (
            "leak suspected: named like something known only afterwards",
            True,
            True,
        )
    return line


def _counts(file: SampledFile, name: str, requests: np.ndarray) -> bool:
    """Whether a column numbers the rows of each request, as the place where an ad was shown does."""
    guess = file.guesses[name]
    if guess.reading.kind != "integer" or guess.reading.list_separator is not None or file.texts(name).null_count:
        return False
    values, several = numbers(file.values(name)), np.bincount(requests[requests >= 0]).max(initial=0)
    return bool(
        several > 1 and values.min() in (0, 1) and values.max() <= several and not repeats(requests, values).any()
    )


def _as_values(file: SampledFile, name: str) -> pa.Array:
    values = file.values(name)
    return values if not pa.types.is_list(values.type) else file.texts(name)


def _side(codes: np.ndarray, groups: _Groups, *, has_ads: bool, in_candidates: bool) -> tuple[Any, str]:
    """The side of a column, by what it is constant within."""
    if in_candidates:
        return "pair", ""
    by_request, by_ad = constancy(codes, groups.request), constancy(codes, groups.ad)
    if by_ad.holds and not has_ads:
        return "ad", f"one value in each of {by_ad.groups:,} ads"
    if by_request.holds or by_request.groups < MIN_GROUPS:
        few = (
            "most requests have one row, so no telling: taken as the request's; say side: ad if it is the ad's"
            if by_request.groups < MIN_GROUPS
            else ""
        )
        return "query", few or f"one value in each of {by_request.groups:,} requests"
    return ("query" if by_request.share > 0.9 else "pair"), f"one value in {by_request.share:.0%} of requests"
