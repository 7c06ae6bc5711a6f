"""A search without any look-up before it: what a request without candidates does."""

from typing import Any

import numpy as np

from indexing.update_record import Update

LATER = 2 * 10**15


def test_a_reader_that_looked_nothing_up_finds_new_and_changed_ads(day: Any, built: Any, content: Any) -> None:
    changed = next(ad_id for ad_id, row in built.catalogue.items() if row["status"] == "active")
    live = day.after(Update(ad_id="other", at=0, takedown=True))
    day.after(
        Update(ad_id=changed, at=LATER, bid=1.0, content=content(price=2.0)),
        Update(ad_id="brand-new", at=LATER, bid=1.0, content=content()),
    )
    query = np.ones((len(built.index.manifest.tasks), built.index.manifest.head_dim + 2), np.float32)
    found = live.ids(live.search(query, None, 1000, live.allowed()))
    assert {changed, "brand-new"} <= set(found)
