"""What names of files and columns say: words for ads, users, requests, outcomes and moments."""

import re
import unicodedata


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
OUTCOME = re.compile(
    r"(^|_)((click|tap|order|install|sign_?up|engage|book|checkout|follow|purchase|subscribe|like|convert|conversion|conv)"
    r"(e?d|s)?|bought|buy|sale|sold)$"
)
"""A name, or a word in a column of outcomes, that can be little else than an outcome."""

TELLS = re.compile(
    r"(^|_)(click(ed|s)?|tap(ped|s)?|convert(ed)?|conversions?|purchase[ds]?|bought|sold|install(ed|s)?|sign_?ups?|signed_up"
    r"|ordered|booked|subscribed|followed|liked|engaged)$"
)
"""A word in a column that tells by itself that the column holds outcomes, which books and orders do not."""

TIME_FIRST = re.compile(r"show|impress|event|request|serve|time|stamp|date|_at$|_ts$")
_ID = re.compile(r"_?(id|key|uid|uuid|code|hash|no|nr|number)$")


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


def best_named(names: list[str], words: re.Pattern[str]) -> str | None:
    """The name that says most surely that it is one of these: the word alone, then with ``id``, then among others.

    Example:
        >>> best_named(["ad_format", "shop", "ad_id"], AD_WORDS), best_named(["user_city", "user"], USER_WORDS)
        ('ad_id', 'user')
    """
    found = [name for name in names if words.search(plain(name))]
    return min(found, key=lambda name: _doubt(plain(name), words), default=None)


def _doubt(name: str, words: re.Pattern[str]) -> int:
    bare = _ID.sub("", name)
    alone = words.fullmatch(bare) is not None
    return 0 if alone else 1 if bare != name else 2
