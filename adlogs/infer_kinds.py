"""Decides how a column is encoded, from what was measured of it, and says why."""

import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow.types as kinds

from adlogs.infer_profile import NumberShape, Profile
from contracts.schema import Side

MAX_VOCABULARY = 1_000
"""Values up to which a table is exact; more are hashed."""

MAX_BUCKETS = 1 << 22
FEW_NUMBERS = 24
"""Whole numbers with so few values are rather names than amounts."""

SKEWED = 2.0
MANY_MISSING = 0.98
LARGE_NUMBERS = 1e5
_NAMES = re.compile(
    r"(^|_)(id|code|type|kind|tag|zip|postcode|hash|key|category|surface|slot|hour|weekday|band)s?(_|$)"
)
_WHO = re.compile(r"user|viewer|member|customer|visitor|person|account|ad|item|video|creative|product|advertiser|brand")
_AMOUNTS = re.compile(
    r"(^|_)(num|count|day|age|price|amount|size|length|duration|width|height|ms|rate|score|click|view|impression|order"
    r"|purchase|visit|like|follower|friend|fan)s?(_|$)"
)


@dataclass
class FeatureGuess:
    """One feature of the proposal.

    Args:
        name: Its column.
        side: Whose value it is.
        spec: What stands in the schema.
        comment: Why.
        check: Whether a person should look.
        left_out: Whether it is commented out.
        table: Of an embedding table of its own: what stands under ``tables``.
        table_comment: Why.
        notes: Of a sequence: why, by field.
    """

    name: str
    side: Side
    spec: dict[str, Any]
    comment: str
    check: bool = False
    left_out: bool = False
    table: dict[str, int] | None = None
    table_comment: str = ""
    notes: dict[str, str] = field(default_factory=dict)

    def leave_out(self, reason: str) -> "FeatureGuess":
        """Comment it out."""
        self.left_out, self.check, self.comment = True, True, reason
        return self


def guess_feature(name: str, side: Side, profile: Profile) -> FeatureGuess:
    """The feature that a column makes; a sequence's fields are guessed apart."""
    guess = FeatureGuess(name, side, {"side": side}, _measured(profile))
    if profile.distinct == 0:
        return guess.leave_out("no value in the sample")
    if profile.not_finite:
        return guess.leave_out(f"{profile.not_finite:,} NaN or infinite values, which no model reads: write null")
    if profile.is_time:
        return guess.leave_out("a moment: what a model can read is an age or an hour made of it")
    if profile.is_list:
        return _list(guess, profile)
    if profile.distinct == 1 and profile.missing == 0:
        return guess.leave_out("one value in every row")
    if profile.is_text:
        return _category(guess, profile)
    if kinds.is_boolean(profile.type):
        return _flag(guess, profile)
    if profile.shape is None:
        return guess.leave_out(f"type {profile.type}, which no feature reads")
    if profile.is_integer and _is_name(name, profile, guess):
        return _category(guess, profile)
    return _number(guess, profile, profile.shape)


def category_table(profile: Profile) -> tuple[dict[str, int], str]:
    """The embedding table of so many values, and why it has that size."""
    distinct = profile.distinct
    dim = 4 if distinct <= 16 else 8 if distinct < 100_000 else 16
    if distinct <= MAX_VOCABULARY and not (profile.is_growing and distinct > MAX_VOCABULARY // 4):
        rows = _power_of_two(max(4, distinct + distinct // 4))
        return {"dim": dim, "max_values": rows}, f"{distinct:,} values, with room for more"
    more = 4 if profile.is_growing else 2
    buckets = min(MAX_BUCKETS, _power_of_two(more * distinct))
    coming = ", and more to come" if profile.is_growing else ""
    return {"dim": dim, "buckets": buckets}, f"{distinct:,} values in the sample{coming}: {more} buckets for each"


def _category(guess: FeatureGuess, profile: Profile) -> FeatureGuess:
    guess.spec |= {"kind": "categorical", "table": guess.name}
    guess.table, guess.table_comment = category_table(profile)
    if profile.distinct > 0.95 * profile.rows * (1 - profile.missing) and profile.distinct > 20:
        guess.leave_out(
            f"{profile.distinct:,} values in {profile.rows:,} rows: free text, or ids that do not come again"
        )
    return _sparse(guess, profile)


def _flag(guess: FeatureGuess, profile: Profile) -> FeatureGuess:
    if profile.missing:
        return _category(guess, profile)
    guess.spec |= {"kind": "dense", "default": 0.0}
    return guess


def _is_name(name: str, profile: Profile, guess: FeatureGuess) -> bool:
    """Whether whole numbers are names of things, not amounts."""
    shape = profile.shape
    if shape is None or not shape.is_whole:
        return False
    if _NAMES.search(name.lower()) or _WHO.fullmatch(name.lower()):
        return True
    if profile.distinct <= 2:
        return profile.missing > 0 or shape.low not in (0.0, 1.0)
    if _AMOUNTS.search(name.lower()):
        return False
    if profile.distinct <= FEW_NUMBERS:
        guess.check = True
        guess.comment += "; few whole numbers: names, or amounts (then dense)?"
        return True
    if shape.early >= LARGE_NUMBERS and profile.distinct > 100:
        guess.check = True
        guess.comment += "; large whole numbers: ids, or amounts (then dense)?"
        return True
    return False


def _number(guess: FeatureGuess, profile: Profile, shape: NumberShape) -> FeatureGuess:
    if profile.distinct <= 2 and profile.missing == 0 and shape.low == 0 and shape.high == 1:
        guess.spec |= {"kind": "dense", "default": 0.0}
        return guess
    transform, why = _transform(shape)
    guess.spec |= {"kind": "dense", "transform": transform}
    guess.comment += f", {shape.low:.4g} to {shape.high:.4g}{why}"
    return _sparse(guess, profile)


def _transform(shape: NumberShape) -> tuple[str, str]:
    if abs(shape.skew) <= SKEWED:
        return "standardize", ""
    if abs(shape.log_skew) <= SKEWED:
        return "log1p_standardize", f"; skew {shape.skew:.1f}, {shape.log_skew:.1f} after log1p"
    return "quantile", f"; skew {shape.skew:.1f}, {shape.log_skew:.1f} after log1p: ranks instead"


def _list(guess: FeatureGuess, profile: Profile) -> FeatureGuess:
    low, usual, high = profile.lengths or (0, 0, 0)
    if kinds.is_floating(profile.type):
        if low != high:
            return guess.leave_out(f"lists of {low} to {high} numbers: an embedding has one length")
        guess.spec |= {"kind": "embedding", "length": high}
        guess.comment = f"{high} numbers in every row" + _missing(profile)
        return guess
    if not (profile.is_text or profile.is_integer or kinds.is_boolean(profile.type)):
        return guess.leave_out(f"lists of {profile.type}, which no feature reads")
    length = min(high if high <= 8 else usual, 32)
    guess.spec |= {"kind": "multi_categorical", "table": guess.name, "max_length": max(length, 1)}
    guess.table, guess.table_comment = category_table(profile)
    counts = f"{low} to {high} in a row, 95 % have at most {usual}"
    guess.comment = f"{profile.distinct:,} values{_missing(profile)}; {counts}"
    return _sparse(guess, profile)


def _sparse(guess: FeatureGuess, profile: Profile) -> FeatureGuess:
    if profile.missing > MANY_MISSING and not guess.left_out:
        guess.leave_out(f"{guess.comment}: hardly any value")
    return guess


def _measured(profile: Profile) -> str:
    more = "+" if profile.is_growing else ""
    return f"{profile.distinct:,}{more} values{_missing(profile)}"


def _missing(profile: Profile) -> str:
    if not profile.missing:
        return ""
    return f", {profile.missing:.1%} missing" if profile.missing >= 0.001 else ", less than .1% missing"


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
