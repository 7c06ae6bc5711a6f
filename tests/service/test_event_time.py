"""A host whose clock is behind ranks all the same where no moment is named, and says so."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from contracts.errors import RequestError
from service.api import RankRequest
from service.deadline import Deadline
from service.ranker import rank

EVENTS = ["2026-02-20T00:00:00Z", 1772366000000, None, "2200-03-01T11:00:00Z"]


@pytest.fixture
def ask(snapshot, settings):
    def ranked(**fields):
        query = {"country": "DE", "device": "FR", "user_ctr": 0.2}
        query["watch"] = {"ad": ["key-1", "key-2", "key-3", "key-4"], "time": EVENTS}
        request = RankRequest(scenario="shopping", query=query, candidates=["shopping-1", "shopping-2"], **fields)
        return rank(request, snapshot, settings, Deadline.after_ms(None)).response

    return ranked


def test_events_later_than_the_clock_set_the_moment(ask):
    found = ask()
    (warning,) = found.warnings
    assert "later than this host's clock, ages are taken against the latest" in warning
    named = ask(event_time=datetime(2200, 3, 1, 11, tzinfo=UTC))
    assert named.warnings == []
    assert (found.ads.ids, found.ads.utilities, found.ads.heavy) == (
        named.ads.ids,
        named.ads.utilities,
        named.ads.heavy,
    )


def test_events_later_than_the_moment_that_a_request_names_are_refused(ask):
    with pytest.raises(RequestError, match=r"query\.watch\.time.*holds an event later than the request"):
        ask(event_time=datetime(2200, 3, 1, 11, tzinfo=UTC) - timedelta(seconds=1))


@pytest.mark.parametrize(
    "moment",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(minutes=1))),
        datetime.max.replace(tzinfo=timezone(timedelta(minutes=-1))),
    ],
)
def test_a_moment_that_a_zone_leads_out_of_the_calendar_is_refused(ask, moment):
    with pytest.raises(RequestError, match=r"event_time: expected a time of the years 1 to 9999 UTC, got \"\d{4}-"):
        ask(event_time=moment)
