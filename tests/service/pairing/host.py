"""One store and one host that serves it: everything that can happen on a day, one step after another.

A step is a name and two numbers, which choose among what there is.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from contracts.errors import AdsieveError
from indexing.store import DirectoryStore
from indexing.update_record import Content, Update
from service.follower import Follower
from service.settings import Settings
from service.telemetry import Telemetry

EVENT_TIME, MOMENT_US = "2026-03-01T12:00:00Z", 1_772_366_400_000_000
STEP_US = 10
"""Between two updates."""
NUM_IDS = 52
"""Ads that updates and requests name: those of the catalogue, and some that only updates bring."""
NUM_SLOTS = 3
"""Requests in flight at most."""
REQUESTS = ("begin", "begin", "go_on", "go_on", "land")
UPDATES = ("takedown", "status", "bid", "budget", "content", "apply")
RELEASES = ("publish", "rollback", "reencode", "build", "prune", "swap")
STEPS = (*REQUESTS, *REQUESTS, *UPDATES, *RELEASES, "publish", "poll", "poll", "poll", "swap", "swap")


@dataclass
class InFlight:
    """A request, and what the host had when it began."""

    flight: Any
    question: Any
    versions: Any
    in_effect: int


@dataclass
class Host:
    """A store, its follower, requests in flight, and what is expected of them.

    Args:
        tools: The modules beside this one, by name.
        models, judge, day: As ``models``, ``judge`` and ``day`` have them.
        root: Empty directory.
        settings: Of the service, for a store in ``root``.
        make_query: The features of a request by number.
    """

    tools: Any
    models: Any
    judge: Any
    day: Any
    root: Path
    settings: Settings
    make_query: Any
    counts: Counter = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slots: dict[int, InFlight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = DirectoryStore(self.root / "store")
        self.models.publish(self.store, 0, 0)
        self.follower = Follower(self.store, self.settings, Telemetry())
        self.follower.poll()
        self.nights, self._in_catalogue, self._was_compacted = self.root / "nights", 0, False
        self.nights.mkdir()
        self.ids = [f"ad-{number}" for number in range(NUM_IDS)]

    def do(self, number: int, first: int, second: int) -> str:
        """Take a step; what the store refuses leaves all as it was. What was done, for people."""
        step = STEPS[number % len(STEPS)]
        try:
            getattr(self, step)(first, second)
        except AdsieveError as error:
            if step not in RELEASES:
                raise
            self.counts[f"{step} refused"] += 1
            return f"{step} {first} {second}: {error}"
        self.counts[step] += 1
        return f"{step} {first} {second}"

    def end(self) -> None:
        """Land what flies; with all updates in effect and the newest release served, ask once more: all is certain."""
        for slot in list(self.slots):
            self.land(slot, 0)
        self.apply(0, 0)
        self.poll(0, 0)
        for is_retrieved in (0, 1):
            self.begin(0, is_retrieved)
            self.land(0, 0)
        troubles = {**self.follower.failures, **self.follower.faults}
        self.faults += [f"{name}: {failure.error}" for name, failure in troubles.items()]

    def close(self) -> None:
        """Let nothing run on."""
        for one in self.slots.values():
            one.flight.finish()
        self.follower.close()

    def begin(self, slot: int, seed: int) -> None:
        """Ask about all ads, or for ads; with the slot in flight, land it first."""
        slot %= NUM_SLOTS
        if slot in self.slots:
            self.land(slot, 0)
        self.slots[slot] = self.take_off(seed)

    def take_off(self, seed: int, pause: Callable[[], None] | None = None) -> InFlight:
        """A request that waits until it is told to go on, or for ``pause`` at each of the points where it may wait."""
        rng, is_retrieved = np.random.default_rng(seed), seed % 4 == 1
        affinities = [None if rng.random() < 0.1 else float(rng.normal()) for _ in self.ids]
        given = (None, None) if is_retrieved else (self.ids, affinities)
        question = self.tools.judge.Question(self.make_query(seed), *given)
        body = msgspec.json.encode(question.body(self.day.scenario, EVENT_TIME))
        in_effect, snapshot = self.day.in_effect, self.follower.snapshot
        versions = snapshot.releases[self.day.scenario].versions
        flight = self.tools.flight.Flight(body, snapshot, self.settings, pause)
        return InFlight(flight, question, versions, in_effect)

    def go_on(self, slot: int, how_far: int) -> None:
        """Let a request run past some of the points where it waits."""
        slot %= NUM_SLOTS
        for _ in range(1 + how_far % 4):
            if slot in self.slots:
                one = self.slots[slot]
                one.flight.go_on()
                if one.flight.is_landed:
                    self.land(slot, 0)

    def land(self, slot: int, _: int) -> None:
        """Let a request run to its end, and judge the answer."""
        one = self.slots.pop(slot % NUM_SLOTS, None)
        if one is not None:
            self.judge_answer(one)

    def judge_answer(self, one: InFlight) -> None:
        """Wait for the answer to a request and note what is wrong with it."""
        response = one.flight.land()
        windows = {ad_id: self.day.window(ad_id, one.in_effect, self.day.num_made) for ad_id in self.ids}
        if response.release != {self.day.scenario: one.versions}:
            self.faults.append(f"answered by {response.release}, asked of {one.versions}")
        self.faults += self.judge.faults(one.question, response, windows)
        self._count(one, response)

    def _count(self, one: InFlight, response: Any) -> None:
        """How much happened while a request was in flight."""
        now = self.follower.snapshot.releases[self.day.scenario].versions
        self.counts["answers"] += 1
        self.counts["ads"] += len(response.ads.ids)
        self.counts["answers after an update"] += self.day.num_made > one.in_effect
        for part in ("two_tower", "index", "heavy"):
            self.counts[f"answers after another {part}"] += getattr(now, part) != getattr(one.versions, part)

    def takedown(self, ad: int, value: int) -> None:
        self._update(ad, takedown=bool(value % 3))

    def status(self, ad: int, value: int) -> None:
        self._update(ad, status=("paused", "active")[value % 2])

    def bid(self, ad: int, value: int) -> None:
        self._update(ad, bid=None if value % 7 == 0 else value / 16)

    def budget(self, ad: int, value: int) -> None:
        self._update(ad, budget=(0.0, 5.0, None)[value % 3])

    def content(self, ad: int, seed: int) -> None:
        """A new or changed ad; sometimes it moves to another scenario, or has a bid of its own."""
        rng, models = np.random.default_rng(seed), self.tools.models
        content = Content(
            scenario="elsewhere" if seed % 8 == 0 else self.day.scenario,
            valid_from=self._now(),
            objective=models.OBJECTIVES[seed % 3],
            features=models.random_features(rng),
        )
        more = {"bid": 0.5 + seed / 64} if seed % 2 else {}
        self._update(ad, content=content, **more)

    def apply(self, _: int, __: int) -> None:
        end = self.store.update_log().end
        self.follower.apply_updates()
        self.day.in_effect = 0 if end is None else end.seq

    def poll(self, _: int, __: int) -> None:
        self.follower.poll()

    def publish(self, tower: int, heavy: int) -> None:
        """An index that was built before the day."""
        models = self.tools.models
        self.models.publish(self.store, tower % models.NUM_TOWERS, heavy % models.NUM_HEAVIES)

    def swap(self, heavy: int, _: int) -> None:
        """Another tower than that which serves, at once."""
        versions = [bundle.manifest.version for bundle in self.models.towers]
        serving = self.follower.snapshot.releases[self.day.scenario].versions
        self.publish(versions.index(serving.two_tower) + 1, heavy)
        self.poll(0, 0)

    def build(self, tower: int, heavy: int) -> None:
        """An index of now. The catalogue is new too where it must be, since a prune dropped updates, or else may be."""
        models = self.tools.models
        pair = tower % models.NUM_TOWERS, heavy % models.NUM_HEAVIES
        if self._was_compacted or tower % 5 == 0:
            self._renew_catalogue()
        out = self._new_directory()
        self.models.build(out, *pair, more=self.nights, updates=self.store.update_log())
        self.models.publish(self.store, *pair, index=out)

    def reencode(self, heavy: int, _: int) -> None:
        """The current index for another heavy ranker."""
        release = self.store.current(self.day.scenario)
        source, heavy = self.store.paths(release).index, heavy % self.tools.models.NUM_HEAVIES
        out = self._new_directory()
        self.models.reencode(out, source, heavy, more=self.nights, updates=self.store.update_log())
        towers = [bundle.manifest.version for bundle in self.models.towers]
        self.models.publish(self.store, towers.index(release.two_tower), heavy, index=out)

    def rollback(self, to: int, _: int) -> None:
        names = self.store.names(self.day.scenario)
        self.store.rollback(self.day.scenario, names[to % len(names)])

    def prune(self, keep: int, _: int) -> None:
        if self.store.prune(keep=1 + keep % 3).updates:
            self._was_compacted = True

    def _update(self, ad: int, **changes: Any) -> None:
        update = Update(ad_id=self.ids[ad % NUM_IDS], at=self._now(), **changes)
        self.day.make(update)
        self.store.append_updates([update])

    def _renew_catalogue(self) -> None:
        """What updates have changed since the last time, as a file that is later than all of them so far."""
        changed = {
            ad_id: self.day.window(ad_id, self.day.num_made, self.day.num_made)[-1]
            for ad_id in self.ids
            if self.day.last_update(ad_id) > self._in_catalogue
        }
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self._now() - STEP_US // 2)
        rows = [
            {
                "ad_id": ad_id,
                "valid_from": moment,
                "scenario": state.scenario,
                "status": state.status,
                "advertiser_id": None,
                "bid": state.bid,
                "objective": state.objective,
                **state.features,
            }
            for ad_id, state in changed.items()
            if state.features is not None
        ]
        if rows:
            self.tools.models.write_ads(self.nights / f"{self.day.num_made}.parquet", rows)
        self._in_catalogue, self._was_compacted = self.day.num_made, False

    def _now(self) -> int:
        """Later than all updates so far."""
        return MOMENT_US + STEP_US * self.day.num_made

    def _new_directory(self) -> Path:
        self.counts["directories"] += 1
        return self.root / f"index-{self.counts['directories']}"
