"""An overlay of a log whose last updates a compaction dropped."""

from pathlib import Path
from typing import Any

from indexing.compaction import compact
from indexing.update_record import Update

LONG_AFTER = 10**18


def test_an_overlay_reaches_the_end_of_a_log_whose_last_updates_are_gone(
    day: Any, new_day: Any, built: Any, tmp_path: Path
) -> None:
    first, second = list(built.catalogue)[:2]
    day.after(Update(ad_id=first, at=0, takedown=True), Update(ad_id=second, at=0, bid=2.0))
    end = day.log.end
    day.restart()
    compact(day.log, [end], now_us=LONG_AFTER)
    assert [update.seq for update in day.log.read()] == [1]
    assert day.log.end == end
    other = new_day(tmp_path, merged=end)
    other.apply()
    live = other.open()
    assert live.position == end
    assert live.servable(live.lookup([first])).tolist() == [False]
    third = list(built.catalogue)[2]
    live = other.after(Update(ad_id=third, at=0, takedown=True))
    assert live.position == other.log.end
    assert live.servable(live.lookup([first, third])).tolist() == [False, False]
    other.close()
