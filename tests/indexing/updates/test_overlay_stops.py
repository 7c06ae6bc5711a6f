"""What a host keeps of takedowns and budgets outlives the log that told so, and yields to what is said later."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from contracts.errors import AdsieveError
from contracts.release import UpdatePosition
from indexing import overlay_stops, update_log
from indexing.compaction import compact
from indexing.overlay_stops import Stops
from indexing.update_log import UpdateLog
from indexing.update_record import Update


class Host:
    """A log, and the stops of a host that follows it; ``follow`` is what an overlay's writer does when it starts."""

    def __init__(self, directory: Path) -> None:
        self.log = UpdateLog(directory / "updates")
        self.directory = directory / "stops"

    def say(self, *updates: Update) -> None:
        self.log.append(updates)

    def follow(self) -> set[str]:
        """Ads that are stopped once the log, as it is now, has been read."""
        log, stops = UpdateLog(self.log.directory), Stops(self.directory)
        end, manifest = log.end, log.manifest()
        held = stops.held(end, manifest.floor if manifest is not None else 0)
        down = {update.ad_id: True for update in held.updates() if update.takedown}
        spent = {update.ad_id: True for update in held.updates() if update.budget is not UNSET}
        told = list(log.read())
        for update in map(held.over, told):
            if update.takedown is not None:
                down[update.ad_id] = update.takedown
            if update.budget is not UNSET:
                spent[update.ad_id] = update.budget is not None and update.budget <= 0
        if end is not None:
            stops.save(held.log, told)
            stops.keep(held)
        return {ad_id for states in (down, spent) for ad_id, stopped in states.items() if stopped}

    def lose_log(self) -> None:
        self.log.set_aside()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def down(ad_id: str) -> Update:
    return Update(ad_id=ad_id, at=0, takedown=True)


def restored(ad_id: str) -> Update:
    return Update(ad_id=ad_id, at=0, takedown=False)


def budget(ad_id: str, left: float | None) -> Update:
    return Update(ad_id=ad_id, at=0, budget=left)


def test_a_host_that_never_followed_a_log_knows_nothing(host: Host) -> None:
    assert not Stops(host.directory).are_known
    assert host.follow() == set()
    assert not host.directory.exists(), "where there is nothing to keep, nothing is written"


def test_what_a_log_stops_stays_stopped_when_it_is_gone_and_when_another_begins(host: Host) -> None:
    host.say(
        down("a"),
        down("b"),
        restored("b"),
        budget("c", 0),
        budget("d", 0),
        budget("d", 2),
        Update(ad_id="e", at=0, bid=1.0),
    )
    assert host.follow() == {"a", "c"}
    assert Stops(host.directory).are_known
    host.lose_log()
    assert host.follow() == host.follow() == {"a", "c"}
    host.say(down("z"))
    assert host.follow() == host.follow() == {"a", "c", "z"}
    host.say(restored("a"), budget("c", None))
    assert host.follow() == host.follow() == {"z"}
    host.lose_log()
    host.say(restored("z"), down("y"))
    assert host.follow() == host.follow() == {"y"}


def test_what_was_said_before_a_log_came_back_does_not_count(host: Host, tmp_path: Path) -> None:
    host.say(restored("a"))
    host.follow()
    aside = host.log.set_aside()
    host.say(down("a"))
    assert host.follow() == {"a"}
    host.lose_log()
    aside.rename(host.log.directory)
    assert host.follow() == host.follow() == {"a"}, "the log that came back restored it before it was taken down"
    host.say(restored("a"))
    assert host.follow() == host.follow() == set()


def test_a_log_that_lost_its_end_keeps_what_came_last(host: Host) -> None:
    host.say(down("b"), restored("a"))
    segment = next(host.log.directory.glob("*.jsonl"))
    whole = segment.read_bytes()
    host.say(down("a"), restored("b"))
    assert host.follow() == {"a"}
    segment.write_bytes(whole)
    assert host.follow() == host.follow() == {"a", "b"}, "the takedown of b is what is left of it"
    host.say(restored("a"))
    assert host.follow() == {"b"}


def test_a_takedown_whose_line_was_damaged_stands(host: Host) -> None:
    host.say(restored("a"))
    host.say(down("a"))
    host.say(Update(ad_id="c", at=0, bid=1.0))
    assert host.follow() == {"a"}
    segment = next(host.log.directory.glob("*.jsonl"))
    segment.write_bytes(segment.read_bytes().replace(b'"takedown":true', b'"takedown":trve'))
    assert host.follow() == host.follow() == {"a"}
    host.say(restored("a"))
    assert host.follow() == host.follow() == set()


def test_what_a_compaction_dropped_while_the_host_was_away_is_not_held_against_an_ad(host: Host) -> None:
    host.say(down("a"), down("b"))
    assert host.follow() == {"a", "b"}
    host.say(restored("a"))
    compact(host.log, [host.log.end], now_us=100 * 86_400_000_000)
    assert [update.ad_id for update in host.log.read()] == ["b"]
    assert host.follow() == host.follow() == {"b"}
    host.lose_log()
    assert host.follow() == {"b"}


def test_many_stops_are_folded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_log, "SEGMENT_BYTES", 200)
    for number in range(40):
        host.say(down("a"), restored("a"), down(f"b-{number % 3}"))
        host.follow()
    assert len(list((host.directory / overlay_stops.LOG).glob("*.jsonl"))) <= overlay_stops._MANY_SEGMENTS + 1
    host.lose_log()
    assert host.follow() == {"b-0", "b-1", "b-2"}


def test_a_process_that_still_reads_the_log_before_does_not_undo_what_the_next_one_told(host: Host) -> None:
    host.say(down("a"))
    late, before = Stops(host.directory), host.log.end
    late.held(before)
    host.lose_log()
    host.say(down("b"))
    assert host.follow() == {"b"}
    late.save(before.log, [Update(seq=1, ad_id="a", at=0, takedown=True)])
    host.lose_log()
    assert host.follow() == {"b"}


def test_what_is_damaged_here_stops_no_start(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    host.say(down("a"))
    host.follow()
    (host.directory / overlay_stops.CARRIED).write_bytes(b"{")
    assert host.follow() == {"a"}
    assert "carried.json: cannot be read" in caplog.text
    next((host.directory / overlay_stops.LOG).glob("*.jsonl")).unlink()
    assert host.follow() == {"a"}
    assert "what this host knew to be stopped is lost" in caplog.text
    host.lose_log()
    assert host.follow() == {"a"}, "it was learned again from the log"


def test_what_could_not_be_saved_is_saved_by_the_next_call(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = Stops(host.directory)
    update = Update(seq=1, ad_id="a", at=0, takedown=True)

    def full(*_: object, **__: object) -> UpdatePosition:
        raise AdsieveError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(UpdateLog, "append_mirrored", full)
        with pytest.raises(AdsieveError, match="no space left"):
            stops.save("log-1", [update])
    stops.save("log-1", [])
    assert [one.ad_id for one in Stops(host.directory).held(None).updates()] == ["a"]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["down", "restore", "spend", "fill"]), st.sampled_from("abc")),
            st.tuples(st.sampled_from(["lose", "follow"]), st.just("")),
        ),
        max_size=20,
    )
)
def test_only_a_later_update_lifts_a_stop_whatever_logs_are_lost(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    host = Host(tmp_path_factory.mktemp("host"))
    says = {"down": down, "restore": restored, "spend": lambda ad: budget(ad, 0.0), "fill": lambda ad: budget(ad, 1.0)}
    stopped: dict[tuple[str, str], bool] = {}
    for step, ad_id in steps:
        if step in says:
            host.say(says[step](ad_id))
            stopped["down" if step in ("down", "restore") else "spent", ad_id] = step in ("down", "spend")
        elif step == "lose":
            host.follow()  # a host that is up to date when the log is lost
            host.lose_log()
        assert step != "follow" or host.follow() == {ad_id for (_, ad_id), is_so in stopped.items() if is_so}
    assert host.follow() == {ad_id for (_, ad_id), is_so in stopped.items() if is_so}
