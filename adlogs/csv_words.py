"""Recognises the words of an outcome: which of click and noclick, Y and N, or 1 and -1 means that it happened."""

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_names import OUTCOME, TELLS, plain

MAX_WORDS = 6
_TRUE = frozenset(
    {"1", "1.0", "+1", "true", "t", "yes", "y", "on", "ja", "j", "oui", "si", "positive", "pos", "success"}
)
_FALSE = frozenset(
    {"0", "0.0", "-1", "-1.0", "false", "f", "no", "n", "off", "nein", "non", "negative", "neg", "none", "nothing"}
    | {
        "impression",
        "imp",
        "view",
        "viewed",
        "show",
        "shown",
        "seen",
        "ignore",
        "ignored",
        "skip",
        "skipped",
        "failure",
    }
)
_NOT = re.compile(r"(no|not|non|un|did_not|didn_t|without)_?(?=.)")
_NO_OUTCOME = re.compile(r"objective|goal|target|optimi|stage|type|kind|categor|format|campaign|model|channel|source")
"""Names of what an ad is for, or where something came from, whose words are those of outcomes too."""

_OPEN = "which words mean that it happened?"


@dataclass(frozen=True)
class Words:
    """What the words of a column mean.

    Args:
        true: Mean 1.
        false: Mean 0; ``""`` is no value.
        note: What is not sure; empty where nothing is.
    """

    true: tuple[str, ...]
    false: tuple[str, ...]
    note: str = ""


def words_of(name: str, texts: pa.Array, *, is_outcome: bool = False) -> Words | None:
    """The words for yes and no, or of an outcome; None where a column seems to hold neither.

    Args:
        name: Of the column.
        texts: Its values, null where there is none.
        is_outcome: Whether a person said that it is an outcome.

    Example:
        >>> words_of("clicked", pa.array(["click", "noclick"]))
        Words(true=('click',), false=('noclick',), note='')
        >>> words_of("clicked", pa.array(["x", None])).false
        ('',)
    """
    counts = pc.value_counts(pc.utf8_trim_whitespace(texts.drop_null()))
    if not 0 < len(counts) <= MAX_WORDS:
        return None
    found = dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
    named = is_outcome or OUTCOME.search(plain(name)) is not None
    meaning = {word: _meaning(word) for word in found}
    true, false = (tuple(word for word, means in meaning.items() if means is wanted) for wanted in (True, False))
    tells = bool(false or len(true) < len(found)) and any(TELLS.search(_bare(word)) for word in true)
    if not named and not tells and len(true) == len(false) == 1 == len(found) - 1:
        return Words(true, false)
    if not named and (not tells or _NO_OUTCOME.search(plain(name))):
        return None
    if len(found) == 1:
        return _one_word(next(iter(found)), meaning, has_missing=texts.null_count > 0) if named else None
    if true and false and len(true) + len(false) == len(found):
        return Words(true, false, "" if named and len(found) == 2 else f"an outcome by its words: {_OPEN}")
    if tells:
        return Words(true, tuple(word for word in found if word not in true), f"{_OPEN} the others were taken for 0")
    if len(found) == 2:
        rare = min(found, key=lambda word: found[word])
        return Words((rare,), tuple(word for word in found if word != rare), f"{_OPEN} the rarer one was taken for 1")
    return None


def _one_word(word: str, meaning: dict[str, bool | None], *, has_missing: bool) -> Words | None:
    """A column that only says where it happened."""
    if meaning[word] is False or not has_missing:
        return None
    return Words((word,), ("",), "only says where it happened: no value was taken for 0; right, or not known there?")


def _meaning(word: str) -> bool | None:
    bare = _bare(word)
    if word.strip().lower() in _FALSE or bare in _FALSE:
        return False
    if word.strip().lower() in _TRUE or bare in _TRUE or OUTCOME.fullmatch(bare):
        return True
    rest = _NOT.sub("", bare, count=1)
    return False if rest != bare and (rest in _TRUE or OUTCOME.fullmatch(rest)) else None


def _bare(word: str) -> str:
    """In lower case, words joined by underscores.

    Example:
        >>> _bare("No Click"), _bare("Add-to-cart")
        ('no_click', 'add_to_cart')
    """
    return re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_")
