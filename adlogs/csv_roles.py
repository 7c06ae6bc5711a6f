"""Finds what each CSV file of a folder is: impressions, or requests and candidates; ads; look-up tables; their keys."""

import re
import unicodedata
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_folder import SampledFile
from contracts.errors import LogError


def _words(*words: str) -> re.Pattern[str]:
    """Matches a name with one of these words, or its plural, in it."""
    return re.compile(rf"(^|_)({'|'.join(words)})s?(_|$)")


AD_WORDS = _words(
    *("ad", "item", "video", "clip", "creative", "product", "sku", "banner", "content", "offer", "listing", "article")
)
USER_WORDS = _words(
    *("user", "viewer", "member", "customer", "visitor", "person", "people", "account", "device", "uid", "cookie")
)
REQUEST_WORDS = _words("request", "req", "auction", "query", "querie", "search", "searche", "page_?view")
LABEL_WORDS = re.compile(
    "click|tap|conv|purchas|buy|bought|order|install|sign_?up|like|engag|book|cart|checkout|sale|lead|subscri|follow"
)
TIME_FIRST = re.compile(r"show|impress|event|request|serve|time|stamp|date|_at$|_ts$")
_MIN_OVERLAP = 0.5


@dataclass(frozen=True)
class Join:
    """That a file's key finds its rows from a column of the facts.

    Args:
        file: With one row a key.
        key: Its column.
        column: Of the facts.
        overlap: Share of the facts' values that the keys hold.
    """

    file: SampledFile
    key: str
    column: str
    overlap: float


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


def find_roles(files: list[SampledFile]) -> Roles:
    """Guess them from keys, overlaps, flags and names.

    Raises:
        LogError: No file has moments and ids of ads.
    """
    facts = max(files, key=lambda file: (_fact_score(file), file.rows.num_rows))
    labels = labels_of(facts)
    joins = [found for file in files if file is not facts and (found := _join(file, facts)) is not None]
    times = [name for name in facts.columns if facts.guesses[name].is_time]
    notes: dict[str, str] = {}
    if not labels:
        notes["labels"] = _without_labels(facts)
    request = _hinted(facts.columns, REQUEST_WORDS)
    requests = _requests(joins) if not times else None
    if requests is not None:
        joins.remove(requests)
        request = requests.column
        known = {id(file) for file in (facts, requests.file, *(join.file for join in joins))}
        others = [_join(file, requests.file) for file in files if id(file) not in known]
        joins += [join for join in others if join is not None]
    time = _first_hinted(times, TIME_FIRST)
    if time is None and requests is None:
        raise LogError(
            f"{facts.path}: no column looks like a moment, expected when each row happened; found {facts.columns}",
            next_step="write times as 2026-03-01T12:00:00Z, or write the mapping yourself: `format` says how they are",
        )
    ids = [name for name in facts.columns if _is_id(facts, name) and name not in (request, *labels)]
    ads = _ads(joins, ids)
    ad = ads.column if ads is not None else _ad_of(facts, ids, notes)
    source = facts if requests is None else requests.file
    user = next((name for name in source.columns if USER_WORDS.search(plain(name)) and name != ad), None)
    user = user or next((join.column for join in joins if join is not ads and join.column in source.columns), None)
    lookups = [join for join in joins if join is not ads and join.column in source.columns]
    used = {id(file) for file in (facts, *(join.file for join in joins), *([requests.file] if requests else []))}
    return Roles(
        facts=facts,
        time=time,
        ad=ad,
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
    """Columns of 0 and 1 with the name of an outcome; the most frequent first."""
    named = [n for n in file.columns if file.guesses[n].is_flag and LABEL_WORDS.search(plain(n))]
    return sorted(named, key=lambda name: -(pc.mean(file.values(name).cast(pa.int8())).as_py() or 0.0))


def _without_labels(facts: SampledFile) -> str:
    """What a person is told where no column has the name and the values of an outcome."""
    flags = [name for name in facts.columns if facts.guesses[name].is_flag]
    found = (
        f"; of 0 and 1 are {', '.join(flags)}" if flags else "; no column holds 0 and 1, true and false or yes and no"
    )
    return f"no outcome was found: name the column of clicks or the like label_click{found}"


def plain(name: str) -> str:
    """A name in lower case with underscores, as the schema wants it.

    Example:
        >>> plain("Viewer ID"), plain("isClicked"), plain("2nd price"), plain("Größe")
        ('viewer_id', 'is_clicked', 'c_2nd_price', 'grosse')
    """
    bare = unicodedata.normalize("NFKD", name.replace("ß", "ss")).encode("ascii", "ignore").decode()
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", bare)
    words = re.sub(r"[^A-Za-z0-9]+", "_", spaced).strip("_").lower() or "column"
    return words if words[0].isalpha() else f"c_{words}"


def _fact_score(file: SampledFile) -> float:
    """Facts have outcomes, moments and ids; few of their columns are keys."""
    return (
        3.0 * bool(labels_of(file)) + 1.0 * any(file.guesses[n].is_time for n in file.columns) - 0.5 * bool(file.keys)
    )


def _join(file: SampledFile, facts: SampledFile) -> Join | None:
    """How the facts find the rows of a file: by the pair of columns with most in common."""
    best: tuple[float, Join] | None = None
    for key in file.keys or file.timed_keys:
        keys = pc.unique(file.texts(key))
        for column in facts.columns:
            if facts.guesses[column].is_time or facts.guesses[column].is_flag:
                continue
            values = pc.unique(facts.texts(column).drop_null())
            if not len(values):
                continue
            common = pc.sum(pc.is_in(values, value_set=keys)).as_py() or 0
            overlap, coverage = common / len(values), common / len(keys)
            is_named = plain(key) == plain(column)
            if overlap < _MIN_OVERLAP and not (is_named and overlap > 0):
                continue
            score = overlap * coverage + is_named
            if best is None or score > best[0]:
                best = score, Join(file, key, column, overlap)
    if best is None or (best[0] < 0.1 and plain(best[1].key) != plain(best[1].column)):
        return None
    return best[1]


def _requests(joins: list[Join]) -> Join | None:
    """The file of requests: it alone has moments."""
    timed = [join for join in joins if any(join.file.guesses[name].is_time for name in join.file.columns)]
    hinted = [
        join for join in timed if REQUEST_WORDS.search(plain(join.key)) or REQUEST_WORDS.search(plain(join.column))
    ]
    return next(iter(hinted or timed), None)


def _ads(joins: list[Join], ids: list[str]) -> Join | None:
    """The file of ads: by names, else the one with fewest keys."""
    possible = [join for join in joins if join.column in ids and not USER_WORDS.search(plain(join.column))]
    hinted = [
        join
        for join in possible
        if AD_WORDS.search(plain(join.column)) or AD_WORDS.search(plain(join.file.name.partition(".")[0]))
    ]
    return next(iter(hinted), None) or min(possible, key=lambda join: join.file.rows.num_rows, default=None)


def _ad_of(facts: SampledFile, ids: list[str], notes: dict[str, str]) -> str:
    hinted = _hinted(ids, AD_WORDS)
    if hinted is not None:
        return hinted
    left = [name for name in ids if not USER_WORDS.search(plain(name))]
    if not left:
        raise LogError(
            f"{facts.path}: no column looks like the id of an ad; expected one such as ad_id; found {facts.columns}"
        )
    notes["ad"] = "the column with most distinct values that no name explains"
    return max(left, key=lambda name: len(pc.unique(facts.texts(name))))


def _is_id(file: SampledFile, name: str) -> bool:
    guess = file.guesses[name]
    return guess.reading.kind in ("text", "integer") and guess.reading.list_separator is None and not guess.is_flag


def _hinted(names: list[str], words: re.Pattern[str]) -> str | None:
    return next((name for name in names if words.search(plain(name))), None)


def _first_hinted(names: list[str], words: re.Pattern[str]) -> str | None:
    return _hinted(names, words) or next(iter(names), None)
