"""Moments that a calendar holds: those of the years 1 to 9999, UTC, which both Arrow and Python can tell."""

MIN_EPOCH_MS = -62_135_596_800_000
"""The beginning of the year 1, milliseconds since 1970."""
MAX_EPOCH_MS = 253_402_300_799_999
"""The end of the year 9999."""
FIRST_US, LAST_US = MIN_EPOCH_MS * 1000, MAX_EPOCH_MS * 1000 + 999
"""The same in microseconds."""


def is_told(micros: int) -> bool:
    """Whether microseconds since 1970 are of these years.

    Example:
        >>> is_told(LAST_US), is_told(FIRST_US - 1)
        (True, False)
    """
    return FIRST_US <= micros <= LAST_US
