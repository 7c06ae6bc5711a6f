"""Content of updates as the table that an ads dataset would hold, and embedded by the bundle that serves it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from contracts.errors import LogError
from indexing.embed import AdEmbedder, EmbeddedAds
from indexing.update_record import Content

OF_RECORD = ("ad_id", "scenario", "advertiser_id", "objective")
"""Columns that are fields of a record, and features too where a schema names them."""

_SOURCE = "updates"


@dataclass(frozen=True)
class NewAd:
    """A new or changed ad, and the update that told of it."""

    ad_id: str
    seq: int
    content: Content


@dataclass(frozen=True)
class EmbeddedContent:
    """What is stored of N ads.

    Args:
        places: Which of the ads that were asked for, ascending, int64 [N].
        ads: [N].
        objectives: Codes, int8 [N].
    """

    places: np.ndarray
    ads: EmbeddedAds
    objectives: np.ndarray


class ContentEmbedder:
    """Embeds and encodes content; what is not valid for these bundles is left out, and counted by its fault.

    Args:
        embedder: Of the bundles that the index was built with.
    """

    def __init__(self, embedder: AdEmbedder) -> None:
        self._embedder = embedder
        self._needed = sorted(set(embedder.columns) - set(OF_RECORD))
        self.faults: dict[str, int] = {}

    def embed(self, ads: Sequence[NewAd]) -> Iterator[EmbeddedContent]:
        """Embed ads together, in parts where one of them has a type that fits no feature."""
        whole = [place for place, ad in enumerate(ads) if self._is_whole(ad)]
        yield from self._embed(ads, np.array(whole, np.int64))

    def _embed(self, ads: Sequence[NewAd], places: np.ndarray) -> Iterator[EmbeddedContent]:
        if len(places) == 0:
            return
        try:
            table = content_table([ads[place] for place in places.tolist()], self._needed)
            batch = self._embedder.embed(table, source=_SOURCE, check=0)
        except LogError as error:
            if len(places) == 1:
                self._count([str(error)])
                return
            middle = len(places) // 2
            yield from self._embed(ads, places[:middle])
            yield from self._embed(ads, places[middle:])
            return
        for fault, count in batch.counters.faults.items():
            self._count([fault] * count)
        overflows = batch.counters.dropped.get("embedding", 0)
        self._count(["the embedding is not finite"] * overflows)
        yield EmbeddedContent(places[batch.valid_from], batch.ads, batch.attributes.objectives)

    def _is_whole(self, ad: NewAd) -> bool:
        lacking = [name for name in self._needed if name not in ad.content.features]
        self._count([f"lacks the column {name}" for name in lacking])
        return not lacking

    def _count(self, faults: Iterable[str]) -> None:
        for fault in faults:
            self.faults[fault] = self.faults.get(fault, 0) + 1


def content_table(ads: Sequence[NewAd], columns: Iterable[str]) -> pa.Table:
    """The rows of an ads dataset that some content stands for.

    Args:
        ads: In any order; an ad may come twice.
        columns: Of the features to take; absent ones are null.

    Returns:
        With the place in ``ads`` as ``valid_from``, since an ad's id does not tell its versions apart.
    """
    table: dict[str, pa.Array] = {
        "ad_id": pa.array([ad.ad_id for ad in ads], pa.string()),
        "valid_from": pa.array(range(len(ads)), pa.timestamp("us", "UTC")),
        "scenario": pa.array([ad.content.scenario for ad in ads], pa.string()),
        "advertiser_id": pa.array([ad.content.advertiser_id for ad in ads], pa.string()),
        "objective": pa.array([ad.content.objective for ad in ads], pa.string()),
    }
    for name in columns:
        table[name] = value_column([ad.content.features.get(name) for ad in ads])
    return pa.table(table)


def value_column(values: Sequence[Any]) -> pa.Array:
    """An Arrow column of plain JSON values, of the type that they have in common; text where only text is.

    Raises:
        LogError: They have none.

    Example:
        >>> [str(value_column(values).type) for values in ([1, None], [1, 0.5], [1, "a"], [[1], ["a"]])]
        ['int64', 'double', 'string', 'list<item: string>']
    """
    for plain in (values, [_as_text(value) for value in values]):
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            return pa.array(plain)
    raise LogError("values of one column have no type in common")


def _as_text(value: Any) -> Any:
    """The text that a category hashes as: integers in decimal, booleans as 1 and 0; of a list, value by value."""
    if isinstance(value, list | tuple):
        return [_as_text(one) for one in value]
    return str(int(value)) if isinstance(value, int) else value
