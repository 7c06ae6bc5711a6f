"""Which rows a batch of content appends to an overlay: those that are later than what their ads have."""

from collections.abc import Sequence
from dataclasses import dataclass

from indexing.overlay_content import ContentEmbedder, EmbeddedContent, NewAd
from indexing.overlay_effect import AdRows
from indexing.overlay_rows import NewRow


@dataclass(frozen=True)
class Batch:
    """Rows to append, and the ``valid_from`` of the newest content of each ad, by its place."""

    rows: list[NewRow]
    latest: dict[int, int]


def new_rows(
    contents: Sequence[NewAd], slots: Sequence[int], ads: AdRows, scenario: str, embedder: ContentEmbedder
) -> Batch:
    """Embed content and decide what of it counts.

    Args:
        contents: In the order of the log.
        slots: Their ads' places.
        ads: What is known of each ad.
        scenario: Of the index; content of another takes its ad out of this one.
    """
    embedded = _embedded(contents, slots, ads, scenario, embedder)
    latest: dict[int, int] = {}
    rows: list[NewRow] = []
    for place, (ad, slot) in enumerate(zip(contents, slots, strict=True)):
        is_here = ad.content.scenario == scenario
        if ad.content.valid_from <= latest.get(slot, ads.valid_from[slot]):
            continue
        if is_here and place not in embedded:
            continue
        if is_here or ads.is_found(slot) or slot in latest:
            rows.append(NewRow(slot, ad, embedded.get(place)))
        latest[slot] = ad.content.valid_from
    return Batch(rows, latest)


def _embedded(
    contents: Sequence[NewAd], slots: Sequence[int], ads: AdRows, scenario: str, embedder: ContentEmbedder
) -> dict[int, tuple[EmbeddedContent, int]]:
    """By place in the batch, where its embedding is; what cannot count, or is not valid, is left out."""
    places = [
        place
        for place, (ad, slot) in enumerate(zip(contents, slots, strict=True))
        if ad.content.scenario == scenario and ad.content.valid_from > ads.valid_from[slot]
    ]
    parts = list(embedder.embed([contents[place] for place in places]))
    return {places[place]: (part, at) for part in parts for at, place in enumerate(part.places.tolist())}
