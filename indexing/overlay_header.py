"""The header of an overlay: whose it is, how far it has followed the log, and what its writer tells beside."""

from dataclasses import dataclass

import numpy as np

MAGIC = b"adsieve4"
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("boot", "S40"),  # of the host; after another start the pages may not all have reached the disk
        ("index", "S128"),
        ("log", "S64"),
        ("seq", "i8"),  # last update in effect
        ("applied_at", "f8"),  # the rest as of Notes
        ("damaged", "i8"),
        ("dropped", "i8"),
        ("taken_down", "i8"),
        ("without_budget", "i8"),
        ("num_rows", "i8"),
        ("num_rebid", "i8"),
        ("capacity", "i8"),
        ("retired", "i8"),  # 1: another overlay took this one's place
    ]
)
NOTES = ("applied_at", "damaged", "dropped", "taken_down", "without_budget")


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What an overlay tells of the updates in effect.

    Args:
        applied_at: When the last one came into effect on this host, Unix time; 0 before the first.
        damaged: Lines of the log that could not be read.
        dropped: New and changed ads that could not be embedded, since the overlay was begun.
        taken_down: Ads that a request can find and updates have taken down.
        without_budget: Those that are not taken down and have used up their budget.
    """

    applied_at: float = 0.0
    damaged: int = 0
    dropped: int = 0
    taken_down: int = 0
    without_budget: int = 0


def notes_of(header: np.ndarray) -> Notes:
    """The notes in one record of ``HEADER`` [1]."""
    return Notes(**{name: header[name][0].item() for name in NOTES})
