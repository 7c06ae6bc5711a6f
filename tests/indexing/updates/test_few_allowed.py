"""A filter that leaves next to nothing: each of the ads that remain is scored, as they are now."""

from typing import Any

import numpy as np
import pytest

from indexing.live_search import current_rows, is_few, rows_here, search_scores
from indexing.update_record import Content, Update

LATER = 2 * 10**15


@pytest.fixture
def active(built: Any) -> list[str]:
    return [ad_id for ad_id, row in built.catalogue.items() if row["status"] == "active"]


def test_a_single_allowed_row_is_found_if_it_is_current(day: Any, built: Any, active: list[str], content: Any) -> None:
    live = day.after(
        Update(ad_id=active[0], at=LATER, content=content(price=5.0)),
        Update(ad_id=active[1], at=LATER, bid=3.0),
        Update(ad_id="n-1", at=LATER, bid=2.0, content=content(price=1.0)),
        Update(ad_id=active[2], at=LATER, content=content(price=7.0)),
        Update(ad_id=active[3], at=LATER, content=Content(scenario="shopping", valid_from=LATER, features={})),
    )
    live.refresh()
    current = set(live.lookup([*built.catalogue, "n-1"]).tolist()) - {-1}
    query = np.ones((2, 6), np.float32)
    assert live.num_rows > len(built.catalogue)
    for row in range(live.num_rows):
        allowed = np.zeros(live.num_rows, bool)
        allowed[row] = True
        assert is_few(allowed)
        assert live.search(query, None, 5, allowed).tolist() == [row] * (row in current)
    superseded = set(range(live.num_rows)) - current
    assert {int(row) for row in built.index.id_table.lookup(active[:1])} <= superseded
    assert live.search(query, np.zeros(2), 5, np.zeros(live.num_rows, bool)).tolist() == []


def test_the_best_of_a_few_are_those_of_all(day: Any, built: Any, active: list[str]) -> None:
    """With as many rows as there are ads, the few that a search scores are those that FAISS finds."""
    live = day.after(Update(ad_id=active[0], at=LATER, bid=3.0))
    rng = np.random.default_rng(0)
    for _ in range(20):
        query, weights = rng.normal(size=(2, 6)).astype(np.float32), rng.random(2)
        mask = rng.random(live.num_rows) < 0.5
        found = live.search(query, weights, 10, mask)
        few = current_rows(live._overlay, np.flatnonzero(mask), rows_here(live._overlay, len(mask)))
        scores = search_scores(live.pins(few), live.bids(few), live._heads[live.objectives(few)], query, weights)
        assert sorted(found) == sorted(few[np.argsort(-scores, kind="stable")[:10]])


def test_an_ad_whose_newer_row_came_after_the_mask_is_found_as_it_was(
    day: Any, built: Any, active: list[str], content: Any
) -> None:
    """In mid-request an ad may be as it was or as it is, and is never lost between the two."""
    live = day.after(Update(ad_id=active[0], at=LATER, content=content(price=5.0)))
    (row,), query = live.lookup(active[1:2]).tolist(), np.ones((2, 6), np.float32)
    all_allowed = live.allowed()
    only = np.arange(len(all_allowed)) == row
    after = day.after(Update(ad_id=active[1], at=LATER + 1, content=content(price=7.0)))
    (new_row,) = after.lookup(active[1:2]).tolist()
    assert new_row >= len(all_allowed)
    assert live.search(query, None, 5, only).tolist() == [row]
    found = live.search(query, None, len(all_allowed), all_allowed).tolist()
    assert found.count(row) == 1
    assert new_row not in found
    now = live.search(query, None, live.num_rows, live.allowed()).tolist()
    assert new_row in now
    assert row not in now
