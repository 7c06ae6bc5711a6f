"""One update of an ad through the day, as the log of updates keeps it.

*State* (status, bid, takedown, budget) belongs to no version of an index; *content* (a new or changed ad) carries raw
features and is embedded by the version that serves it. What an update does to an index whose manifest says that the log
was merged up to ``P`` (0 where it names none, or another log):

* content counts where it is of the index's scenario and its ``valid_from`` is later than that of the ad's row, in the
  index or by an earlier update; of another scenario, it takes the ad out of this one;
* status and bid: of each, the latest in the log counts, where its sequence number is above ``P`` or its time is after
  the ``valid_from`` of the index's row. Times of updates are never compared with each other, so that a clock that
  moves back changes nothing;
* takedown and budget: the latest in the log counts, whatever an index or content says. Only ``takedown: false`` lifts
  a takedown; no build, rollback or content does.

An ad is servable where its status is active, it is not taken down and its budget is not used up.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from contracts.errors import InputError
from contracts.names import shortened
from contracts.records import STATUSES

MAX_NESTING = 8


class Content(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A row of the ads dataset, but for status and bid, which are state.

    Args:
        scenario: Where the ad is served from ``valid_from`` on.
        valid_from: Microseconds since 1970 UTC.
        advertiser_id: None where there is none.
        objective: What its bid pays for; None where there is none.
        features: Raw values by column, as the ads dataset holds them.
    """

    scenario: str
    valid_from: int
    advertiser_id: str | None = None
    objective: str | None = None
    features: dict[str, Any] = {}


class Update(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What is new of one ad; what is unset stays as it is.

    Args:
        seq: Place in the log, from 1 on; 0 before it is appended.
        ad_id: The ad; no index need know it yet.
        at: When it was decided, microseconds since 1970 UTC. Only compared with the times of a catalogue.
        status: One of ``contracts.records.STATUSES``, or None for no change.
        bid: At least 0; None takes the bid away.
        takedown: True stops the ad until it is False, whatever else is said.
        budget: What is left of it: at 0 and below the ad is not served; None lifts the limit.
        content: A new or changed ad.
    """

    seq: int = 0
    ad_id: str
    at: int
    status: str | None = None
    bid: float | UnsetType | None = UNSET
    takedown: bool | None = None
    budget: float | UnsetType | None = UNSET
    content: Content | None = None

    @property
    def has_state(self) -> bool:
        """Whether any state is set."""
        unset = self.bid is UNSET and self.budget is UNSET
        return not (unset and self.status is None and self.takedown is None)


class Updates(Protocol):
    """Some updates in their order, which may be read again and again; a list is such, and a spool on disk."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Update]: ...


def check_update(update: Update) -> None:
    """Refuse values that no reader of the log could use.

    Raises:
        InputError: Names the field, the value and what was expected.
    """
    if update.status is not None and update.status not in STATUSES:
        raise InputError(f"status: expected one of {', '.join(STATUSES)}, got {update.status!r}")
    if isinstance(update.bid, int | float) and not (math.isfinite(update.bid) and update.bid >= 0):
        raise InputError(f"bid: expected a finite number of at least 0, or null, got {update.bid}")
    if isinstance(update.budget, int | float) and not math.isfinite(update.budget):
        raise InputError(f"budget: expected a finite number or null, got {update.budget}")
    if not update.has_state and update.content is None:
        raise InputError("expected at least one of status, bid, takedown, budget, content")
    if update.content is not None:
        check_nesting(update.content.features, "content.features")
    try:
        update.ad_id.encode()
    except UnicodeEncodeError:
        raise InputError(f"ad_id: expected valid Unicode text, got {update.ad_id!r}") from None


def check_nesting(features: Mapping[str, Any], path: str) -> None:
    """Refuse values in more lists or objects than any feature has: a reader might not come to their end.

    Raises:
        InputError: Names the feature.
    """
    for name, value in features.items():
        level, depth = [value], 0
        while inner := [one for one in level if isinstance(one, list | tuple | dict)]:
            depth += 1
            if depth > MAX_NESTING:
                raise InputError(
                    f"{path}.{shortened(name)}: expected at most {MAX_NESTING} lists or objects in another"
                )
            level = [one for group in inner for one in (group.values() if isinstance(group, dict) else group)]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Update)
_many_decoder = msgspec.json.Decoder(list[Update])


def encode_update(update: Update) -> bytes:
    """One line of JSON, without the line's end.

    Example:
        >>> encode_update(Update(seq=7, ad_id="ad-1", at=0, bid=None))
        b'{"seq":7,"ad_id":"ad-1","at":0,"bid":null}'
    """
    return _encoder.encode(update)


def decode_update(line: bytes | memoryview) -> Update:
    """Read what ``encode_update`` wrote; fields that are not known here are ignored.

    Raises:
        msgspec.DecodeError: It is no update.
    """
    return _decoder.decode(line)


def decode_updates(lines: Sequence[bytes]) -> list[Update]:
    """Read several at once, which takes a fraction of the time; errors as of :func:`decode_update`.

    Example:
        >>> decode_updates([encode_update(Update(ad_id=name, at=0, bid=1.0)) for name in "ab"])[1].ad_id
        'b'
    """
    return _many_decoder.decode(b"[%s]" % b",".join(lines))
