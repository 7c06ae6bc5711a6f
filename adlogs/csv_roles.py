"""Finds what each CSV file of a folder is: impressions, or requests and candidates; ads; look-up tables; their keys."""

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_ad import Facts, find_ad
from adlogs.csv_folder import SampledFile
from adlogs.csv_join import Join, find_join
from adlogs.csv_names import LABEL_WORDS, REQUEST_WORDS, TELLS, TIME_FIRST, USER_WORDS, best_named, plain
from adlogs.csv_values import TRUE_WORDS
from contracts.errors import LogError


@dataclass
class Roles:
    """What the files of a folder are.

    Args:
        facts: One row an ad in a request: the file with the outcomes.
        time: Its column of moments; None where requests are apart.
        ad: Its column of ads.
        user: Its column of users, where there is one.
        request: Its column of requests, where there is one.
        labels: Its columns of outcomes, the most frequent first.
        requests: The file of requests and its key, where they are apart.
        ads: The file of ads, where there is one.
        lookups: Other files with one row a key.
        unused: Files that nothing leads to.
        notes: What was guessed without evidence, by the name of the role.
    """

    facts: SampledFile
    time: str | None
    ad: str
    user: str | None
    request: str | None
    labels: list[str]
    requests: Join | None = None
    ads: Join | None = None
    lookups: list[Join] = field(default_factory=list)
    unused: list[SampledFile] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)


def find_roles(files: list[SampledFile], ad: str | None = None) -> Roles:
    """Guess them from keys, overlaps, flags and names.

    Args:
        files: Of the folder.
        ad: The column of ads, where a person named it.

    Raises:
        LogError: No file has moments and ids of ads, or several columns may be the id.
    """
    facts = max(files, key=lambda file: _fact_score(file, files))
    labels = labels_of(facts)
    joins = [found for file in files if file is not facts and (found := find_join(file, facts)) is not None]
    times = [name for name in facts.columns if facts.guesses[name].is_time]
    notes: dict[str, str] = {}
    if not labels:
        notes["labels"] = _without_labels(facts)
    request = best_named(facts.columns, REQUEST_WORDS)
    requests = _requests(joins) if not times else None
    if requests is not None:
        joins.remove(requests)
        request = requests.column
        known = {id(file) for file in (facts, requests.file, *(join.file for join in joins))}
        others = [find_join(file, requests.file) for file in files if id(file) not in known]
        joins += [join for join in others if join is not None]
    time = next((name for name in times if TIME_FIRST.search(plain(name))), next(iter(times), None))
    if time is None and requests is None:
        raise LogError(
            f"{facts.path}: no column looks like a moment, expected when each row happened; found {facts.columns}",
            next_step="write times as 2026-03-01T12:00:00Z, or write the mapping yourself: `format` says how they are",
        )
    ids = [name for name in facts.columns if _is_id(facts, name) and name not in (request, *labels)]
    source = facts if requests is None else requests.file
    user = best_named([name for name in source.columns if name != ad], USER_WORDS)
    known_facts = Facts(file=facts, ids=ids, joins=joins, request=request, time=time, user=user)
    chosen = find_ad(known_facts, ad)
    ads = chosen.join
    user = user or next((join.column for join in joins if join is not ads and join.column in source.columns), None)
    if user is None and chosen.user is not None:
        user, notes["user"] = chosen.user, "no name says so: it comes again at a moment, as the ads of a request do"
    if chosen.note:
        notes["ad"] = chosen.note
    lookups = [join for join in joins if join is not ads and join.column in source.columns]
    used = {id(file) for file in (facts, *(join.file for join in joins), *([requests.file] if requests else []))}
    return Roles(
        facts=facts,
        time=time,
        ad=chosen.column,
        user=user,
        request=request,
        labels=labels,
        requests=requests,
        ads=ads,
        lookups=lookups,
        unused=[file for file in files if id(file) not in used],
        notes=notes,
    )


def labels_of(file: SampledFile) -> list[str]:
    """Columns of 0 and 1, or of words for them, with the name or the words of an outcome; the most frequent first."""
    named = [name for name in file.columns if _is_label(file, name)]
    return sorted(named, key=lambda name: -(pc.mean(file.values(name).cast(pa.int8())).as_py() or 0.0))


def _is_label(file: SampledFile, name: str) -> bool:
    guess = file.guesses[name]
    words = () if guess.reading.true_values == TRUE_WORDS else guess.reading.true_values
    told = LABEL_WORDS.search(plain(name)) or any(TELLS.search(plain(word)) for word in words)
    return guess.is_flag and (name in file.outcomes or bool(told))


def _without_labels(facts: SampledFile) -> str:
    """What a person is told where no column has the name and the values of an outcome."""
    flags = [name for name in facts.columns if facts.guesses[name].is_flag]
    found = f"of 0 and 1, or yes and no, are {', '.join(flags)}" if flags else "no column holds 0 and 1, or yes and no"
    return (
        "no outcome was found, and so no leak looked for: name the columns of clicks and the like by --outcome COLUMN; "
        f"{found}"
    )


def _fact_score(file: SampledFile, files: list[SampledFile]) -> tuple[float, int, bool, int]:
    """Facts have outcomes and moments, and few of their columns are keys; else others are looked up from them."""
    has_time = any(file.guesses[name].is_time for name in file.columns)
    if labels_of(file):
        return 3.0 + has_time - 0.5 * bool(file.keys), 0, True, file.rows.num_rows
    joined = sum(find_join(other, file) is not None for other in files if other is not file)
    has_flag = any(guess.is_flag for guess in file.guesses.values())
    return 0.0, joined + has_time, has_flag, file.rows.num_rows


def _requests(joins: list[Join]) -> Join | None:
    """The file of requests: it alone has moments."""
    timed = [join for join in joins if any(join.file.guesses[name].is_time for name in join.file.columns)]
    hinted = [
        join for join in timed if REQUEST_WORDS.search(plain(join.key)) or REQUEST_WORDS.search(plain(join.column))
    ]
    return next(iter(hinted or timed), None)


def _is_id(file: SampledFile, name: str) -> bool:
    guess = file.guesses[name]
    return guess.reading.kind in ("text", "integer") and guess.reading.list_separator is None and not guess.is_flag
